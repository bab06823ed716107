module softroce

go 1.26
