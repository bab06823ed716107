// Package scenario runs packet-level test scenarios: text files that create queue pairs, post work
// requests, send hand-made packets, and state which packets, completions and states must follow.
// docs/reference/scenario-language.md describes the language.
//
// # How a scenario runs
//
//  1. Run (runner.go) passes the file to the script engine, with a new testbed.Testbed: the NIC
//     under test and the network at its port.
//  2. A command (commands.go) parses its arguments (arguments.go, fields.go, vocabulary.go,
//     data.go) and executes on the Testbed (objects.go, queuepair.go, post.go, inject.go, …), or
//     checks what the Testbed reported: packets (expect.go, match.go), and what the program on the
//     NIC observes (expect_nic.go).
//  3. The script (script.go) holds what was reported and not yet expected: packets, completions,
//     events, drops. At the end of the file nothing may be left.
//
// The Testbed interface hides what the NIC is. The same file runs with simulated NICs under virtual
// time, and against a live NIC, over a link and with a verbs program on its host.
package scenario
