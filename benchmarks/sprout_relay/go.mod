module trellis/benchmarks/sprout_relay

go 1.21

require (
	git.sr.ht/~whereswaldon/forest-go v0.0.0-20210610022432-d59588450728
	git.sr.ht/~whereswaldon/sprout-go v0.0.0-20210408013049-fedf4ae2e7f8
)

require (
	git.sr.ht/~athorp96/forest-ex v0.0.0-20201012012825-01012995abe1 // indirect
	github.com/fsnotify/fsnotify v1.4.7 // indirect
	golang.org/x/crypto v0.0.0-20210415154028-4f45737414dc // indirect
	golang.org/x/sys v0.0.0-20210415045647-66c3f260301c // indirect
)

replace (
	git.sr.ht/~athorp96/forest-ex => ../../tests/interop/arbor/expiring
	golang.org/x/crypto => github.com/ProtonMail/crypto v0.0.0-20201022141144-3fe6b6992c0f
)
