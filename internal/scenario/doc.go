// Package scenario runs packet-level scenarios: text files in which a person creates queue
// pairs, posts work, makes packets by hand, and says which packets, completions and states are
// to follow. docs/reference/scenario-language.md describes the language.
//
// # The way of a scenario
//
//  1. Run (run.go) gives each file to the script engine, with a fresh testbed.Testbed: the NIC
//     under test and what its cable leads to.
//  2. A command's words are read (words.go, fields.go, data.go) and carried out on the Testbed
//     (objects.go, post.go, inject.go), or looked for in what has come from it: packets (expect.go,
//     match.go), and what the program on the NIC sees (outcome.go).
//  3. The stage (stage.go) keeps what came and was not expected yet: packets, completions,
//     events, drops. At the end of the file nothing may be left.
//
// A Testbed is all that scenarios know of a NIC, so that the same file is played with simulated
// NICs, under virtual time, and against a live NIC, over a link and with a verbs program on its host.
package scenario
