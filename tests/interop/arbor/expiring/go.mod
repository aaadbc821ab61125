module git.sr.ht/~athorp96/forest-ex

go 1.21

require git.sr.ht/~whereswaldon/forest-go v0.0.0-20210610022432-d59588450728

replace golang.org/x/crypto => github.com/ProtonMail/crypto v0.0.0-20201022141144-3fe6b6992c0f
