package daemon

import (
	"errors"

	"softroce/wire"
)

// dgramLink opens a link to a virtual machine's NIC.
func (b *builder) dgramLink(n NIC) (wire.Link, wire.Interface, error) {
	return nil, nil, errors.ErrUnsupported
}
