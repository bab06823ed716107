package rxelab

import (
	"context"
	"fmt"
	"time"
)

// commandLimit is for a guest that hangs, so it is longer than slow machines need.
const commandLimit = time.Minute

// ImpairEgress impairs what the guest sends. The arguments are those of tc-netem: "loss 5%",
// "duplicate 20%", "delay 5ms reorder 80%".
func (g *Guest) ImpairEgress(ctx context.Context, netem string) error {
	_, err := g.Run(ctx, commandLimit, "tc qdisc replace dev eth0 root netem "+netem)
	return err
}

// ImpairIngress impairs the RoCE packets that the guest receives, behind the point where a capture
// on the bridge sees them.
func (g *Guest) ImpairIngress(ctx context.Context, netem string) error {
	_, err := g.Run(ctx, commandLimit, fmt.Sprintf(`set -e
modprobe ifb numifbs=1; ip link show ifb0 >/dev/null 2>&1 || ip link add ifb0 type ifb
ip link set ifb0 mtu 9000 up
tc qdisc del dev eth0 ingress 2>/dev/null || true
tc qdisc add dev eth0 ingress
for p in ip ipv6; do
	tc filter add dev eth0 parent ffff: protocol $p flower ip_proto udp dst_port 4791 action mirred egress redirect dev ifb0
done
tc qdisc replace dev ifb0 root netem %s`, netem))
	return err
}

// DropIngress makes the guest drop all RoCE packets that it receives.
func (g *Guest) DropIngress(ctx context.Context) error {
	_, err := g.Run(ctx, commandLimit, `set -e
tc qdisc add dev eth0 ingress
for p in ip ipv6; do
	tc filter add dev eth0 parent ffff: protocol $p flower ip_proto udp dst_port 4791 action drop
done`)
	return err
}

// ClearImpairments undoes ImpairEgress, ImpairIngress and DropIngress.
func (g *Guest) ClearImpairments(ctx context.Context) error {
	_, err := g.Run(ctx, commandLimit, `tc qdisc del dev eth0 root 2>/dev/null
tc qdisc del dev eth0 ingress 2>/dev/null; tc qdisc del dev ifb0 root 2>/dev/null; true`)
	return err
}
