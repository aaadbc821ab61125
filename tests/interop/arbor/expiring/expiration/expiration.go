// Package expiration stands in for the package of that name in forest-ex, which the module proxy does not serve
// and of which sprout-go's worker needs this one function. Written for these tests from what the genuine relay
// was seen to do: what has expired, or says so illegibly, is dropped.
package expiration

import (
	"fmt"
	"time"

	forest "git.sr.ht/~whereswaldon/forest-go"
)

// IsExpired tells whether the time in a node's expiration/1 is over; without one it never is.
func IsExpired(node forest.Node) (bool, error) {
	metadata, err := node.TwigMetadata()
	if err != nil {
		return false, fmt.Errorf("failed reading metadata: %w", err)
	}
	value, said := metadata.Get("expiration", 1)
	if !said {
		return false, nil
	}
	end, err := time.Parse(time.RFC3339, string(value))
	if err != nil {
		return false, fmt.Errorf("failed reading expiration: %w", err)
	}
	return !time.Now().Before(end), nil
}
