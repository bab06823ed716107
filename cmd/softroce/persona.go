package main

import (
	"errors"
	"fmt"

	"softroce/internal/persona"
)

type personaCmd struct {
	Action string `arg:"" enum:"list,show" help:"list prints the names of the personas in softroce, show the YAML of one."`
	Name   string `arg:"" optional:"" complete:"<personas>" help:"The persona: a name of the list, or a file, whose name has a slash or ends in .yaml."`
}

func (p *personaCmd) Run(e *env) error {
	if p.Action == "list" {
		if p.Name != "" {
			return &usageError{errors.New("persona list takes no name")}
		}
		for _, name := range persona.Names() {
			if _, err := fmt.Fprintln(e.out, name); err != nil {
				return err
			}
		}
		return nil
	}
	if p.Name == "" {
		return &usageError{errors.New("persona show needs the name of a persona: softroce persona list prints them")}
	}
	if _, err := persona.Load(p.Name); err != nil {
		return err
	}
	text, err := persona.Text(p.Name)
	if err != nil {
		return err
	}
	_, err = e.out.Write(text)
	return err
}
