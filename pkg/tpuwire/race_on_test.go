//go:build race

package tpuwire

const raceDetector = true
