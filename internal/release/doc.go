// Package release has release stores: who loads the word with acquire sees what was stored before
// it. On x86 they do not wait for the cache line. Loads that follow may come before the store:
// where two words decide together, as package abi lists them, use sync/atomic.
package release
