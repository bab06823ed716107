// Package netsim is softroce sim: whole NICs on a network of switches under virtual time.
//
// The NICs are those of package nic, each with an engine, and with a client that posts work
// requests to rings as a program does. So the transport, its congestion control and its recovery
// from losses are the real ones. The switches are those of package network. A run is determined by
// its topology, workload and seed.
//
//  1. LoadTopology and LoadWorkload read the files that users write.
//  2. plan draws the flows of the workload.
//  3. run alternates between the network and the NICs (Run): time jumps to the next event of the
//     network or deadline of a NIC, and NICs are stepped at which something has happened.
//  4. Each flow has a queue pair at either end, which later flows between them use again
//     (connection). Its bytes are written in messages.
//  5. The sampler notes at intervals what ports and NICs have done (sampler).
//  6. The result is computed from the flows, the ports and the NICs' counters. It is printed as
//     tables (Print), and written as a page (WriteHTML), JSON or CSV.
package netsim
