// Package release has release stores: a load of the word with acquire semantics sees everything
// that was stored before it. On x86 they do not wait for the cache line. Loads that follow may come
// before the store: where two words decide together, as package abi lists them, use sync/atomic.
package release
