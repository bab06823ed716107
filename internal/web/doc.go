// Package web serves the live page of a daemon: its NICs, queue pairs and clients with rates,
// drops, fault rules, the PSNs of a queue pair over time, and captures that it records on request.
//
// Everyone who reaches the address may look, as a user who owns none of the queue pairs: PSNs and
// addresses of memory are hidden. The operator's token shows them, and permits captures.
//
//   - server.go: the listener, the token, and which requests are refused.
//   - state.go: snapshots, of which all viewers share one, so that engines make few.
//   - captures.go: captures and their reports.
//   - page/: the page. Its script draws what /state and /psn return.
//
// An engine never waits for the page: snapshots are made in short steps, and a capture loses
// packets if its file is slow.
package web
