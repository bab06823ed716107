package nicspec

import "softroce/wire"

// OpenInterface opens the link of a NIC of kind Packet or UDP. The caller closes the link and then
// the interface.
func (n NIC) OpenInterface() (wire.Link, *wire.Netdev, error) {
	iface, err := wire.OpenNetdev(n.Interface)
	if err != nil {
		return nil, nil, err
	}
	var link wire.Link
	if n.Kind == Packet {
		link, err = wire.NewPacketLink(iface)
	} else {
		link, err = wire.NewUDPLink(iface)
	}
	if err != nil {
		iface.Close()
		return nil, nil, err
	}
	return link, iface, nil
}
