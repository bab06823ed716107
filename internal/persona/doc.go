// Package persona reads the models that a NIC can report to be: its identifiers, limits, speed and
// PCI device, and what it lacks. A persona is a YAML file, or one of the presets in the program.
//
// A persona never promises what the engine does not have. A limit above the engine's, and a
// feature that the model lacks, are listed under hide: the NIC reports and enforces the engine's
// limit, and refuses the feature.
package persona
