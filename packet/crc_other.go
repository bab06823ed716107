//go:build !amd64

package packet

// hash/crc32 uses the processor's instructions.
const (
	foldMin = 0
	canFold = false
)

var folding struct{}

func fold(uint32, *byte, int, *struct{}) uint32 { panic("canFold is false") }
