package scenario

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"softroce/transport"
)

func document(t *testing.T) string {
	b, err := os.ReadFile("../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTheDocumentHasEveryWordOfTheLanguage(t *testing.T) {
	doc := document(t)
	has := func(what, word string) {
		if !strings.Contains(doc, word) {
			t.Errorf("docs/scenarios.md lacks the %s %q", what, word)
		}
	}
	for name := range table {
		if name != "expect" {
			has("command", "`"+name+"`")
		}
	}
	for name := range expectations {
		has("expectation", "`expect "+name+"`")
	}
	for name := range attrOptions {
		has("attribute", "`"+name+"`")
	}
	for name := range operations.values {
		has("operation", "`"+name+"`")
	}
	for _, f := range fields {
		has("field", "`"+f.name+"=`")
	}
	for name := range shorthands {
		has("shorthand", "`"+name+"=`")
	}
}

func TestTheScenarioInTheDocumentIsPlayable(t *testing.T) {
	_, after, _ := strings.Cut(document(t), "```scenario\n")
	script, _, ok := strings.Cut(after, "```")
	if !ok {
		t.Fatal("there is none")
	}
	if r := play(t, script); r.Err != nil {
		t.Error(r.Log)
	}
}

// texts returns the scenarios by their names.
func texts(t *testing.T) map[string]string {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		m[filepath.Base(f)] = string(b)
	}
	return m
}

// beyond are the reasons that no packet on a cable of the simulation can give.
var beyond = map[transport.DropReason]string{
	transport.DropLinkMalformed: "the link's own: what is no RoCEv2 frame does not reach the NIC",
	transport.DropGroup:         "a script has no multicast address",
	transport.DropGID:           "the simulation's fabric carries nothing to a NIC that is not for its addresses",
}

func TestEveryReasonForADropHasAScenario(t *testing.T) {
	all := texts(t)
	for r := range transport.NumDropReasons {
		found := false
		for _, text := range all {
			found = found || strings.Contains(text, "expect drop "+r.String()+"\n") || strings.Contains(text, "expect drop "+r.String()+" ")
		}
		if !found && beyond[r] == "" {
			t.Errorf("no scenario expects drop %v", r)
		}
	}
}

func TestEveryNAKHasAScenarioFromEitherSide(t *testing.T) {
	all := texts(t)
	for name := range nakNames.values {
		for _, command := range []string{"expect packet", "inject"} {
			if name == "invalid_rd" && command == "expect packet" {
				continue // there is no RD
			}
			line := regexp.MustCompile(`(?m)^` + command + `.* aeth\.syndrome=nak:` + name + `\b`)
			found := false
			for _, text := range all {
				found = found || line.MatchString(text)
			}
			if !found {
				t.Errorf("no scenario has %s … nak:%s", command, name)
			}
		}
	}
}

func TestEveryScenarioBeginsWithWhatItShows(t *testing.T) {
	doc := document(t)
	rule := regexp.MustCompile(`^Rules? (\d+)`)
	for name, text := range texts(t) {
		first, _, _ := strings.Cut(text, "\n")
		what, ok := strings.CutPrefix(first, "# ")
		if !ok {
			t.Errorf("%s begins with %q", name, first)
			continue
		}
		if m := rule.FindStringSubmatch(what); m != nil && !strings.Contains(doc, "\n| "+m[1]+" |") {
			t.Errorf("%s: there is no rule %s in docs/scenarios.md", name, m[1])
		}
	}
}
