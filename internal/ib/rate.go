package ib

// staticRates are the rates of enum ibv_rate in b/s: multiples of 2.5 Gb/s and, from FDR on, of
// 14.0625 and 25.78125 Gb/s and so on, which the names of the codes round.
var staticRates = map[uint8]int64{
	0: 0, 2: 2.5e9, 3: 10e9, 4: 30e9, 5: 5e9, 6: 20e9, 7: 40e9, 8: 60e9, 9: 80e9, 10: 120e9,
	11: 14.062e9, 12: 56.25e9, 13: 112.5e9, 14: 168.75e9,
	15: 25.781e9, 16: 103.125e9, 17: 206.25e9, 18: 309.375e9,
	19: 28.125e9, 20: 53.125e9, 21: 425e9, 22: 637.5e9, 23: 850e9, 24: 1275e9,
}

// StaticRate returns the rate in b/s of a code of enum ibv_rate, which static_rate of an address
// vector has; 0, no limit, for the code 0 and for those that are not assigned.
func StaticRate(code uint8) (rate int64) { return staticRates[code] }

// IsStaticRate reports whether a code of enum ibv_rate is assigned.
func IsStaticRate(code uint8) bool {
	_, ok := staticRates[code]
	return ok
}
