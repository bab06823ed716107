package daemon

import "softroce/wire"

// dgramLink opens a link to a virtual machine's NIC. The link answers for its addresses
// itself, hence is its own interface.
func (b *builder) dgramLink(n NIC) (wire.Link, wire.Interface, error) {
	link, err := wire.NewDgram(wire.DgramConfig{
		Local: n.Local, Remote: n.Remote, MAC: n.station(), MTU: n.MTU, Addrs: n.Addrs, VLANs: n.VLANs,
	})
	if err != nil {
		return nil, nil, err
	}
	return wire.NewLoopback(link, wire.Owns(link)), link, nil
}
