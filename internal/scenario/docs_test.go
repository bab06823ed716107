package scenario

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"softroce/transport"
	"softroce/wire"
)

func document(t *testing.T) string {
	b, err := os.ReadFile("../../docs/reference/scenario-language.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDocumentCoversTheLanguage(t *testing.T) {
	doc := document(t)
	has := func(what, word string) {
		if !strings.Contains(doc, word) {
			t.Errorf("docs/reference/scenario-language.md lacks the %s %q", what, word)
		}
	}
	for name := range commandTable {
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
	for _, f := range frameFields {
		has("field of a frame", "`"+f.name+"=`")
	}
	for name := range shorthands {
		has("shorthand", "`"+name+"=`")
	}
}

func TestDocumentScenarioRuns(t *testing.T) {
	_, after, _ := strings.Cut(document(t), "```scenario\n")
	script, _, ok := strings.Cut(after, "```")
	if !ok {
		t.Fatal("no scenario in the document")
	}
	if r := runScript(t, script); r.Err != nil {
		t.Error(r.Log)
	}
}

// scenarioTexts returns the scenarios by file name.
func scenarioTexts(t *testing.T) map[string]string {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 300 {
		t.Fatalf("%d scenarios, %v; want at least 300", len(files), err)
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

// notSimulated holds the drops of links that cannot occur in a simulation, with the reason.
var notSimulated = map[wire.Drop]string{
	wire.DropOverrun: "a socket's queue",
	wire.DropTooLong: "no path MTU is longer than what a fabric carries",
	wire.DropSend:    "a kernel that refuses",
	wire.DropFault:   "the script's own doing",
}

func TestEveryDropReasonHasScenario(t *testing.T) {
	all := strings.Join(slices.Collect(maps.Values(scenarioTexts(t))), "\n")
	has := func(reason string) bool {
		return strings.Contains(all, "expect drop "+reason+"\n") || strings.Contains(all, "expect drop "+reason+" ")
	}
	for r := range transport.NumDropReasons {
		if r != transport.DropMemoryWait && !has(r.String()) { // no memory takes long in a simulation
			t.Errorf("no scenario expects drop %v", r)
		}
	}
	for d := range wire.NumDrops {
		if name := "link_" + d.String(); has(name) == (notSimulated[d] != "") {
			t.Errorf("drop %s: expected by a scenario: %v; reason why none can: %q", name, has(name), notSimulated[d])
		}
	}
}

func TestEveryNAKHasScenariosFromBothSides(t *testing.T) {
	all := scenarioTexts(t)
	for name := range nakNames.values {
		for _, command := range []string{"expect packet", "inject"} {
			if name == "invalid_rd" && command == "expect packet" {
				continue // RD is not implemented
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

// rules returns the numbers of the rules that a scenario claims to test.
func rules(text string) (l []string) {
	m := regexp.MustCompile(`^# Rules? (\d+(?:(?:, | and )\d+)*)`).FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	return regexp.MustCompile(`\d+`).FindAllString(m[1], -1)
}

func TestEveryScenarioStatesItsClaim(t *testing.T) {
	doc := document(t)
	for name, text := range scenarioTexts(t) {
		if !strings.HasPrefix(text, "# ") {
			t.Errorf("%s does not begin with a comment", name)
		}
		for _, r := range rules(text) {
			if !strings.Contains(doc, "\n| "+r+" |") {
				t.Errorf("%s: no rule %s in docs/reference/scenario-language.md", name, r)
			}
		}
	}
}

// TestEveryRuleHasScenariosFromBothSides checks the table of rules. Each cell must link to
// scenarios that claim to test the rule from that side, or, if there are none, give the reason.
func TestEveryRuleHasScenariosFromBothSides(t *testing.T) {
	all := scenarioTexts(t)
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| .* \| (.*) \| (.*) \|$`).FindAllStringSubmatch(document(t), -1)
	if len(rows) < 24 {
		t.Fatalf("the table has %d rules", len(rows))
	}
	link := regexp.MustCompile(`\[([^\]]+)\]\(\.\./\.\./internal/scenario/testdata/([^)]+)\.txt\)`)
	for i, row := range rows {
		if row[1] != strconv.Itoa(i+1) {
			t.Errorf("rule %s is in row %d of the table", row[1], i+1)
		}
		for side, cell := range map[string]string{"-req-": row[2], "-resp-": row[3]} {
			named := link.FindAllStringSubmatch(cell, -1)
			some := slices.ContainsFunc(slices.Collect(maps.Keys(all)), func(name string) bool {
				return strings.Contains(name, side) && slices.Contains(rules(all[name]), row[1])
			})
			if len(named) == 0 && (cell == "" || some) {
				t.Errorf("rule %s: %q links to no scenario (some exist: %v)", row[1], cell, some)
			}
			for _, n := range named {
				text, ok := all[n[2]+".txt"]
				if !ok || n[1] != n[2] || !slices.Contains(rules(text), row[1]) {
					t.Errorf("rule %s: %s exists: %v, and claims rules %v", row[1], n[1], ok, rules(text))
				}
				if !strings.Contains(n[1], side) && !strings.Contains(n[1], "-pair") {
					t.Errorf("rule %s: %s is not for side %s", row[1], n[1], side)
				}
			}
		}
	}
}
