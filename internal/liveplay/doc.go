// Package onto plays one side of captured RC and UC connections to a live NIC, and judges what that sends.
//
// # The way of a capture
//
//  1. The requester's side: replay.Scripts says what the responder of each stream was given: which packets, in which order,
//     with what in memory and how many receives posted. The responder's side: replay.AnswerScripts says what the requester had
//     to do, and what it was answered (onto.go).
//  2. A verbs program on the live NIC's host makes a queue pair and memory like that (seat.go); addresses, queue
//     pair numbers and keys become those of the live NIC (stage.go, window.go).
//  3. The player sends packet by packet, each when the captured requester had heard as much as the player has now
//     (player.go); what the live network loses is sent again (progress.go). The answerer posts, and answers when what
//     drew the captured answer has come (answerer.go, asking.go).
//  4. What passed is judged by replay.Session and replay.AnswerSession: softroce's queue pair, given the same, has to say the same.
//
// A scenario.Bench is all that is known of the live NIC, so that it may also be one of a simulation.
package liveplay
