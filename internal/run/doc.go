// Package run runs unmodified programs that are linked against libibverbs and librdmacm on
// softroce, in these steps:
//
//  1. Find the program as a shell would, and reject it with the reason if the dynamic linker would
//     not load our libraries into it (program.go).
//  2. Find our libraries, or unpack them from this binary (libraries.go).
//  3. Find or start a daemon, and keep a connection open so that it runs as long as the program
//     (daemon.go).
//  4. Set up the environment (environment.go), run the program, forward signals to it, and return
//     its status (child.go).
//
// # Where the libraries are
//
// A binary installed from a package has the libraries in ../lib/softroce, where services and
// containers can also use them. Any other binary contains them if `make libs` ran before `go build`
// or `go install`, and unpacks them to the user's cache, so that a single file can be copied to
// where it is needed. Installed libraries take precedence over embedded ones, and $SOFTROCE_LIBDIR
// over both. The cache directory is not removed afterwards, because a program in the background may
// still start children that load from it. Its name is a hash of its content.
package run
