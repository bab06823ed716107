package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A program sets the rate of a queue pair, and of an address vector.
func TestRatesThatProgramsSet(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	ctx := t.Context()
	x, _ := verbstest.EndpointConfig{}.Connect(t, f.Open(0), f.Open(1))
	noError(t, x.QP.Modify(ctx, &verbs.QPAttr{RateLimit: 5000}, verbs.QPMaskRateLimit))
	a, err := x.QP.Query(ctx)
	noError(t, err)
	if rate := f.Server.Snapshot().Devices[0].QPs[0].Rate; a.RateLimit != 5000 || rate != 5e6 {
		t.Errorf("rate limit %d kb/s, the daemon shows %d b/s", a.RateLimit, rate)
	}
	noError(t, x.QP.Modify(ctx, &verbs.QPAttr{RateLimit: 0}, verbs.QPMaskRateLimit))
	if rate := f.Server.Snapshot().Devices[0].QPs[0].Rate; rate != 0 {
		t.Errorf("%d b/s without a limit", rate)
	}

	u := verbstest.EndpointConfig{Type: verbs.UD}.New(t, f.Open(0))
	to := verbs.AHAttr{StaticRate: 2, GRH: verbs.GlobalRoute{DGID: u.Info.GID, SGIDIndex: 1}}
	ah, err := u.PD.CreateAH(ctx, to)
	noError(t, err)
	noError(t, ah.Close(ctx))
	to.StaticRate = 1 // not assigned
	if _, err := u.PD.CreateAH(ctx, to); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("static rate 1: %v", err)
	}
}
