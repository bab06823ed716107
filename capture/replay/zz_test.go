package replay_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"os"
	"strings"

	"softroce/capture"
	"softroce/capture/replay"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestZZ(t *testing.T) {
	for name, prog := range map[string]string{
		"dup": "duplicate receive chance 1%\n", "reorder": "reorder 1 receive within 1ms chance 1%\n",
		"corrupt": "corrupt receive chance 1%\n", "dupsend": "duplicate send chance 1%\n","reordersend": "reorder 2 send within 1ms chance 1%\n",
		"dupmore": "duplicate 3 receive chance 5%\n",
		"reorder4": "reorder 4 receive within 1ms chance 2%\n",
		"mixed": "drop send chance 0.5%\nduplicate receive chance 0.5%\ncorrupt chance 0.5%\nreorder 2 receive chance 0.5%\n",
	} {
		t.Run(name, func(t *testing.T) {
		tot:=0; n:=0
	for seed := range uint64(6) {
			rec := capture.NewRecorder()
			faults := func(nic uint64) string { return fmt.Sprintf("seed %d\n%s", seed*2+nic, prog) }
			a, b := verbstest.Pair(t, verbstest.WithCapture(rec), verbstest.WithFaults(0, faults(0)), verbstest.WithFaults(1, faults(1)))
			ends := verbstest.Ends{Options: func(o *verbs.ConnectOptions) { o.Timeout = 12 }}
			x, y := ends.Connect(t, a, b)
			rnd := rand.New(rand.NewPCG(seed, 7))
			for i := range most {
				x.Buf[i], y.Buf[i] = byte(rnd.Uint32()), byte(rnd.Uint32())
			}
			for range 20 {
				n := 1 + rnd.IntN(8)
				post(x, y, rnd, n)
				post(y, x, rnd, n)
				drain(x)
				drain(y)
			}
			ps:=rec.Packets()
			r := packets(t, ps, replay.Options{})
			tot+=r.Differences(); n+=len(ps)
			if d:=r.Differences(); d>0 { rec.Save(fmt.Sprintf("/tmp/onto-zz-%s-%d.pcapng",name,seed)); os.WriteFile(fmt.Sprintf("/tmp/onto-zz-%s-%d.txt",name,seed),[]byte(r.String()),0644)
			  k:=0
			  for _,l:=range strings.Split(r.String(),"\n"){ if strings.Contains(l,"DIFF"){ if k<4 {t.Logf("%d: %s",seed,l)}; k++}}}
	}
		t.Logf("%s: %d differences in %d packets",name,tot,n)
		})
	}
}
