// Package prefetch has the processor load memory into its cache before it is needed, so that
// several loads overlap.
package prefetch

// LineSize is the number of bytes of a cache line.
const LineSize = 64
