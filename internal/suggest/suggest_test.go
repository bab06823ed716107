package suggest

import "testing"

func TestWordSuggestsTheNearest(t *testing.T) {
	known := []string{"create_qp", "create_cq", "cq", "ENOMEM", "RETRY_EXC_ERR", "cm"}
	const all = " (have: ENOMEM, RETRY_EXC_ERR, cm, cq, create_cq, create_qp)"
	for word, want := range map[string]string{
		"craete_qp":            `; did you mean "create_qp"?`,
		"create_pq":            `; did you mean "create_cq"?`, // as near as create_qp
		"CREATE_QP":            `; did you mean "create_qp"?`,
		"enomen":               `; did you mean "ENOMEM"?`,
		"ibv_create_qp":        `; did you mean "create_qp"?`, // not cq, nor cm
		"create_qp_ex":         `; did you mean "create_qp"?`,
		"IBV_WC_RETRY_EXC_ERR": `; did you mean "RETRY_EXC_ERR"?`,
		"qc":                   `; did you mean "cq"?`, // exchanged letters are one mistake
		"-1":                   all,
		"":                     all,
		"nothing":              all,
		"cq":                   `; did you mean "cm"?`, // wrong here, so not itself
	} {
		if got := Word(word, append([]string(nil), known...)); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
