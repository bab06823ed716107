package nicspec

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxNICs is the number of NICs that one text may stand for.
const maxNICs = 64

// ranges are texts in brackets, without those that have a colon: IPv6 addresses with a port.
var ranges = regexp.MustCompile(`\[[^][:]*\]`)

// ParseAll parses the text of several NICs. A text in brackets is a range: numbers and FIRST-LAST,
// separated by commas, with zeros in front as FIRST has them. Each NIC has the next number of every
// range, so all ranges of a text have the same length:
//
//	mlx5_[0-3]=fabric:10.1.[1-4].1,persona=connectx-7,numa=[0,0,1,1]
//
// A text without a range is one NIC.
func ParseAll(s string) ([]NIC, error) {
	count, first := 1, ""
	places := ranges.FindAllStringIndex(s, -1)
	var numbers [][]string
	for _, at := range places {
		text := s[at[0]:at[1]]
		l, err := parseRange(text[1 : len(text)-1])
		if err != nil {
			return nil, fmt.Errorf("NIC %s: range %s: %w", s, text, err)
		}
		if first == "" {
			count, first = len(l), text
		} else if len(l) != count {
			return nil, fmt.Errorf("NIC %s: range %s has a length of %d and %s of %d: want equal lengths", s, first, count, text, len(l))
		}
		numbers = append(numbers, l)
	}
	var nics []NIC
	for i := range count {
		var one strings.Builder
		end := 0
		for j, at := range places {
			one.WriteString(s[end:at[0]] + numbers[j][i])
			end = at[1]
		}
		n, err := Parse(one.String() + s[end:])
		if err != nil {
			return nil, err
		}
		nics = append(nics, n)
	}
	return nics, nil
}

// parseRange lists the numbers of a range.
func parseRange(s string) (l []string, err error) {
	for part := range strings.SplitSeq(s, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		switch {
		case err1 != nil || err2 != nil:
			return nil, fmt.Errorf("%q: want numbers and FIRST-LAST, separated by commas, such as 0-3,8", part)
		case from > to:
			return nil, fmt.Errorf("%q: want the lower number first", part)
		case uint64(len(l))+to-from >= maxNICs:
			return nil, fmt.Errorf("want at most %d NICs", maxNICs)
		}
		for ; from <= to; from++ {
			l = append(l, fmt.Sprintf("%0*d", len(first), from))
		}
	}
	return l, nil
}
