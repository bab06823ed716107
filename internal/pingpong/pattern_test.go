package pingpong

import (
	"bytes"
	"testing"
)

func TestMessageCarriesItsSeed(t *testing.T) {
	for _, size := range []int{1, 2, 4, 5, 6, 4095, 4096, 4097, 9000} {
		for _, i := range []uint32{0, 1, 999, stockSeed} {
			a, b := make([]byte, size), make([]byte, size)
			fill(a, seedFor(i, size))
			fill(b, seedOf(a))
			if !bytes.Equal(a, b) {
				t.Errorf("size %d, message %d: differs from the message of seed %#x", size, i, seedOf(a))
			}
			for at := 0; at < size; at += pageSize {
				if a[at] != 0 {
					t.Errorf("size %d, message %d: page at %d does not start with 0", size, i, at)
				}
			}
		}
	}
}

func TestStockMessageIsRecognized(t *testing.T) {
	stock := bytes.Repeat([]byte{stockByte}, 8192)
	stock[0], stock[4096] = 0, 0
	again := make([]byte, len(stock))
	fill(again, seedOf(stock))
	if !bytes.Equal(stock, again) {
		t.Error("the stock program's message was not recognized")
	}
}
