// Package onto plays the requests of captured RC connections to a live NIC, and judges its replies.
//
// # The way of a capture
//
//  1. replay.Scripts says what the responder of each stream was given: which packets, in which order, with
//     what in memory and how many receives posted (File, onto.go).
//  2. A verbs program on the live NIC's host makes a queue pair and memory like that; addresses, queue
//     pair numbers and keys become those of the live NIC (stage.go).
//  3. The player sends packet by packet, each when the captured requester had heard as much as the player has now
//     (player.go); what the live network loses is sent again (progress.go).
//  4. What passed is judged by replay.Session.Judge: softroce's responder, given the same, has to say the same.
//
// A scenario.Bench is all that is known of the live NIC, so that it may also be one of a simulation.
package onto
