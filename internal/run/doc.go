// Package run lets programs that were linked against libibverbs and librdmacm run on
// softroce as they are. What happens, in this order:
//
//  1. The program is found as a shell would, and looked into: what the dynamic linker will
//     not give our libraries to is told apart, with the reason (program.go).
//  2. Our libraries are found, or unpacked from this binary (libraries.go).
//  3. A daemon is found or started, and held by a connection for as long as the program
//     runs (daemon.go).
//  4. The program gets its environment (environment.go), runs, is sent the signals that come
//     to us, and its status is ours (child.go).
//
// # Where the libraries are
//
// A binary that a package installed has them beside it, in ../lib/softroce, where other
// programs (services, containers that mount the folder) find them too. Any other binary
// carries them in itself, if `make libs` came before `go build` or `go install`, and unpacks
// them to the user's cache: a single file can be copied to where it is needed. What is beside
// the binary goes first, because it was put there on purpose, and $SOFTROCE_LIBDIR goes before
// both. A folder for each run would be gone before a program in the background has started its
// last child, so the cache's stays; its name is made from what is in it.
package run
