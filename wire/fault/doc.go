// Package fault defines the fault language: programs of rules that drop, duplicate, reorder, delay,
// corrupt, mark, rewrite or rate-limit packets, of rules that make verbs fail or take longer, and
// work requests complete with an error or late, and of rules that reject connections and refuse
// accesses to memory. It parses and prints programs. An Evaluator decides what happens to each
// packet, Verbs what happens to a verb or a request for a connection, and Completions what happens
// to a work request or an access. The package moves no packets: wire.FaultLink does, on a link.
// Package attach carries out verbs, and package nic work requests.
//
// docs/reference/fault-language.md is the reference of the language. Its vocabulary:
//
//   - A Program is a seed and a list of rules.
//   - A Rule has an Action, conditions that a packet must meet to match (QP, opcode, PSN,
//     addresses, time …), and a selection among the packets that match (skip, nth, every, chance,
//     count).
//   - A Field is a field of the BTH or of an extended header that the action "set" writes.
//   - A Verdict is the sum of the actions of the rules that selected a packet.
//
// Evaluation is deterministic: the same program, given the same packets at the same times, returns
// the same verdicts. Random choices depend on the seed of the program and the position of the rule.
package fault
