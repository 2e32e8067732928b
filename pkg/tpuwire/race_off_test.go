//go:build !race

package tpuwire

const raceDetector = false
