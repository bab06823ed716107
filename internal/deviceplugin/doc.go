// Package deviceplugin offers the NICs of a daemon to a kubelet, as resources that pods request.
//
// The way of a NIC into a container:
//
//  1. [watcher] connects to the daemon, lists its NICs and follows the states of their ports.
//  2. [injection] writes a CDI specification that has a device for each NIC: the directory of the
//     daemon's socket, the C libraries and the environment in which programs find both.
//  3. [server] serves the device plugin API for one resource. A NIC is as many devices of the
//     kubelet as it has shares, which are healthy while its port is active.
//  4. [registrar] registers the resources with the kubelet, and does so again when the kubelet or
//     its directory is new.
//  5. The kubelet calls Allocate for a container. The reply names the CDI devices of its NICs, and
//     sets SOFTROCE_DEVICE to their names.
//
// Neither the daemon nor the kubelet needs to run before the other side, and both may restart.
package deviceplugin
