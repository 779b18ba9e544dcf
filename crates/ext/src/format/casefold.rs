//! Names that are looked up without regard to case (casefold): two names are the same if they fold to the same bytes.
//!
//! Folding is that of the format: canonical decomposition, without characters that are ignored by default, with full
//! case folding, decomposed again. The tables are those of the crates below, which know more characters than the
//! format's Unicode 12.1. Names that are not UTF-8 fold to themselves.

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

/// The first and the last of each range of characters that Unicode ignores by default.
const IGNORED: [(u32, u32); 17] = [
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180E),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
];

fn is_ignored(c: char) -> bool {
    IGNORED.iter().any(|(first, last)| (*first..=*last).contains(&(c as u32)))
}

/// Returns the bytes that stand for all names that are the same as `name`.
pub fn fold(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.nfd().filter(|c| !is_ignored(*c)).default_case_fold().nfd().collect::<String>().into_bytes(),
        Err(_) => name.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_or_composition_fold_alike() {
        let same = [("README", "readme"), ("Stra\u{df}e", "STRASSE"), ("\u{e9}", "E\u{301}"), ("a\u{ad}b", "AB")];
        for (a, b) in same {
            assert_eq!(fold(a.as_bytes()), fold(b.as_bytes()), "{a} {b}");
        }
        assert_ne!(fold(b"a"), fold(b"b"));
        assert_eq!(fold(b"A\xFF"), b"A\xFF");
    }
}
