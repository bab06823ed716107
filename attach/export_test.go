package attach

// Verbs is verbs.
var Verbs = verbs

// BodyOf returns the length of an operation's body.
func BodyOf(op uint16) int { return operations[op].body }
