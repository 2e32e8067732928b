// Package kubernetes checks the manifests of docs/manifests against the types of
// Kubernetes' API, and pins the crictl that the tests with containerd use. It is a
// module of its own, so that the project needs none of Kubernetes.
package kubernetes

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const manifests = "../../../docs/manifests"

// annotationPrefix begins the names of runsc's annotations about TPUs.
const annotationPrefix = "dev.gvisor.internal.tpu."

// TestManifests wants every object to be one of the API's, without a field that the
// API does not know.
func TestManifests(t *testing.T) {
	files, err := filepath.Glob(manifests + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no manifests in %s: %v", manifests, err)
	}
	seen := make(map[string]runtime.Object)
	for _, file := range files {
		for _, o := range decode(t, file) {
			seen[o.GetObjectKind().GroupVersionKind().Kind] = o
		}
	}
	class, _ := seen["RuntimeClass"].(*nodev1.RuntimeClass)
	pod, _ := seen["Pod"].(*corev1.Pod)
	if class == nil || pod == nil {
		t.Fatal("there is no RuntimeClass, or no Pod")
	}
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName != class.Name {
		t.Errorf("the pod's runtime class is not %s", class.Name)
	}
	if !hasSetting(pod.Annotations) {
		t.Errorf("the pod has no annotation that begins with %s", annotationPrefix)
	}
}

func hasSetting(annotations map[string]string) bool {
	for name := range annotations {
		if strings.HasPrefix(name, annotationPrefix) {
			return true
		}
	}
	return false
}

func decode(t *testing.T, file string) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), nodev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	defer documents.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		o, _, err := strict.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, o)
	}
}
