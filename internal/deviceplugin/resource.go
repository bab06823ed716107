package deviceplugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"softroce/internal/control"
)

// A Resource is what pods request: shares of some NICs.
type Resource struct {
	Name string   // DOMAIN/NAME
	NICs []string // empty: those that no other resource names
}

// reservedDomain is the domain of resources that Kubernetes itself defines.
const reservedDomain = "kubernetes.io"

// ParseResource parses NAME or NAME=NIC,….
func ParseResource(s string) (Resource, error) {
	name, list, named := strings.Cut(s, "=")
	r := Resource{Name: name}
	domain, _, ok := strings.Cut(name, "/")
	if problems := validation.IsQualifiedName(name); !ok || len(problems) > 0 || domain == reservedDomain || strings.HasSuffix(domain, "."+reservedDomain) {
		return r, fmt.Errorf("resource %q: want DOMAIN/NAME, such as softroce.io/nic, with a domain outside %s", name, reservedDomain)
	}
	// The name of a quota is longer by this prefix, and must be valid too.
	if problems := validation.IsQualifiedName("requests." + name); len(problems) > 0 {
		return r, fmt.Errorf("resource %q: the domain is too long", name)
	}
	if !named {
		return r, nil
	}
	for _, nic := range strings.Split(list, ",") {
		if nic == "" {
			return r, fmt.Errorf("resource %q: the name of a NIC is empty: want %s=NIC,… or %s alone", s, name, name)
		}
		if slices.Contains(r.NICs, nic) {
			return r, fmt.Errorf("resource %s names NIC %s twice", name, nic)
		}
		r.NICs = append(r.NICs, nic)
	}
	return r, nil
}

// checkResources returns an error if a name or a NIC belongs to two resources.
func checkResources(list []Resource) error {
	if len(list) == 0 {
		return errors.New("there is no resource")
	}
	names, owner, rest := map[string]bool{}, map[string]string{}, ""
	for _, r := range list {
		if names[r.Name] {
			return fmt.Errorf("resource %s is defined twice", r.Name)
		}
		names[r.Name] = true
		if len(r.NICs) == 0 {
			if rest != "" {
				return fmt.Errorf("resources %s and %s both have the NICs that no other resource names", rest, r.Name)
			}
			rest = r.Name
		}
		for _, nic := range r.NICs {
			if o, taken := owner[nic]; taken {
				return fmt.Errorf("NIC %s belongs to the resources %s and %s", nic, o, r.Name)
			}
			owner[nic] = r.Name
		}
	}
	return nil
}

// choose returns the NICs of a resource, in the order in which it names them, or else in that of
// the daemon.
func (r *Resource) choose(all []Resource, nics []nic) (chosen []nic) {
	if len(r.NICs) > 0 {
		for _, name := range r.NICs {
			if i := slices.IndexFunc(nics, func(n nic) bool { return n.name == name }); i >= 0 {
				chosen = append(chosen, nics[i])
			}
		}
		return chosen
	}
	for _, n := range nics {
		if !slices.ContainsFunc(all, func(o Resource) bool { return slices.Contains(o.NICs, n.name) }) {
			chosen = append(chosen, n)
		}
	}
	return chosen
}

// endpoint returns the name of the resource's socket in the kubelet's directory.
func (r *Resource) endpoint() string {
	return "softroce-" + strings.ReplaceAll(r.Name, "/", "_") + ".sock"
}

// checkEndpoint returns an error if the path of the resource's socket is too long.
func (r *Resource) checkEndpoint(kubeletDir string) error {
	if err := control.CheckPath(filepath.Join(kubeletDir, r.endpoint())); err != nil {
		return fmt.Errorf("resource %s: the socket %s in %s: %w", r.Name, r.endpoint(), kubeletDir, err)
	}
	return nil
}

// maxDeviceID is the longest ID of a device that the device plugin API permits.
const maxDeviceID = 63

// deviceID returns the kubelet's name for a share of a NIC.
func deviceID(nic string, share int) string { return fmt.Sprintf("%s:%d", nic, share) }

// checkName returns an error if a NIC cannot be offered because of its name.
func checkName(nic string, shares int) error {
	if err := parser.ValidateDeviceName(nic); err != nil {
		return fmt.Errorf("NIC %s: a CDI device needs a name that begins and ends with a letter or digit", nic)
	}
	if id := deviceID(nic, shares-1); len(id) > maxDeviceID {
		return fmt.Errorf("NIC %s: the name may have %d characters with %d shares", nic, maxDeviceID-(len(id)-len(nic)), shares)
	}
	return nil
}
