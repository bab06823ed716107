package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"softroce/internal/daemon"
)

// manifests returns the objects of a file, decoded strictly.
func manifests(t *testing.T, file string) (objects []any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../packaging/kubernetes", file))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(part), &kind); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		known := map[string]any{
			"v1 Namespace": &corev1.Namespace{}, "v1 ServiceAccount": &corev1.ServiceAccount{}, "v1 ConfigMap": &corev1.ConfigMap{},
			"apps/v1 DaemonSet": &appsv1.DaemonSet{}, "v1 Pod": &corev1.Pod{},
		}
		object := known[kind.APIVersion+" "+kind.Kind]
		if object == nil {
			t.Fatalf("%s: there is no object %+v", file, kind)
		}
		if err := yaml.UnmarshalStrict([]byte(part), object); err != nil {
			t.Errorf("%s: %s: %v", file, kind.Kind, err)
		}
		objects = append(objects, object)
	}
	return objects
}

// The DaemonSet runs commands that parse, with a configuration that the daemon accepts, and mounts
// what the plugin uses on the node at the same path.
func TestDaemonSetFitsThePlugin(t *testing.T) {
	var set *appsv1.DaemonSet
	var config *corev1.ConfigMap
	for _, o := range manifests(t, "softroce.yaml") {
		switch o := o.(type) {
		case *appsv1.DaemonSet:
			set = o
		case *corev1.ConfigMap:
			config = o
		}
	}
	if set == nil || config == nil || len(set.Spec.Template.Spec.Containers) != 2 {
		t.Fatal("there is no DaemonSet with two containers, or no ConfigMap")
	}
	for key, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("the selector %s=%s does not match the pods", key, value)
		}
	}
	file := filepath.Join(t.TempDir(), "softroce.yaml")
	if err := os.WriteFile(file, []byte(config.Data["softroce.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := daemon.ReadConfig(file)
	if err == nil {
		err = c.Validate()
	}
	if err != nil || c.SocketMode != 0o666 {
		t.Errorf("the configuration has the socket mode %o, %v", c.SocketMode, err)
	}
	hostPaths := map[string]string{}
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			hostPaths[v.Name] = v.HostPath.Path
		}
	}
	for _, container := range set.Spec.Template.Spec.Containers {
		parser := model(t)
		ctx, err := parser.Parse(container.Command[1:])
		if err != nil {
			if !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%v: %v", container.Command, err)
			}
			continue
		}
		need := []string{filepath.Dir(c.Socket)}
		if ctx.Command() == "device-plugin" {
			for _, f := range ctx.Selected().Flags {
				if slices.Contains([]string{"cdi-dir", "libraries", "kubelet-dir"}, f.Name) {
					need = append(need, f.Default)
				}
			}
			if len(need) != 4 {
				t.Errorf("the plugin has the directories %v", need)
			}
		}
		for _, dir := range need {
			if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir && hostPaths[m.Name] == dir }) {
				t.Errorf("%s does not mount %s of the node there", container.Name, dir)
			}
		}
	}
}

func TestExamplePodsRequestTheResource(t *testing.T) {
	for _, file := range []string{"pingpong.yaml", "mpi.yaml"} {
		containers := 0
		for _, o := range manifests(t, file) {
			for _, c := range o.(*corev1.Pod).Spec.Containers {
				containers++
				if n := c.Resources.Limits["softroce.io/nic"]; n.Value() < 1 {
					t.Errorf("%s: %s requests %v NICs", file, c.Name, n.Value())
				}
			}
		}
		if containers == 0 {
			t.Errorf("%s has no container", file)
		}
	}
}
