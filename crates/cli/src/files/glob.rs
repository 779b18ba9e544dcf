//! [`Glob`]: patterns of names, as fnmatch(3) has them: `*`, `?`, `[a-z]`, `[!a-z]`, and a backslash before what is
//! meant as it is. A name may begin with a dot, whatever the pattern begins with.

/// A character of a name, or a byte that is no part of one, above all characters.
type Unit = u32;

/// A pattern of names.
#[derive(Debug, Clone)]
pub(super) struct Glob {
    parts: Vec<Part>,
    ignores_case: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Any number of any characters.
    Any,
    /// One character.
    One,
    Exactly(Unit),
    /// One character of a list, or one that is in none.
    Of {
        ranges: Vec<(Unit, Unit)>,
        negated: bool,
    },
}

impl Glob {
    pub(super) fn new(pattern: &[u8], ignores_case: bool) -> Glob {
        let units = units(pattern, ignores_case);
        let (mut parts, mut at) = (Vec::new(), 0);
        while let Some(&unit) = units.get(at) {
            at += 1;
            parts.push(match char::from_u32(unit) {
                Some('*') => Part::Any,
                Some('?') => Part::One,
                Some('\\') if at < units.len() => {
                    at += 1;
                    Part::Exactly(units[at - 1])
                }
                Some('[') => match list(&units[at..]) {
                    Some((part, len)) => {
                        at += len;
                        part
                    }
                    // A bracket that is not closed stands for itself.
                    None => Part::Exactly(unit),
                },
                _ => Part::Exactly(unit),
            });
        }
        Glob { parts, ignores_case }
    }

    /// Returns true if the pattern matches all of a name.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let units = units(name, self.ignores_case);
        let (mut at, mut part) = (0, 0);
        // The last `*`, and the end of what it stands for: if the rest does not match, that grows.
        let mut star: Option<(usize, usize)> = None;
        while at < units.len() {
            match self.parts.get(part) {
                Some(Part::Any) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(one) if one.is(units[at]) => {
                    at += 1;
                    part += 1;
                }
                _ => {
                    let Some((star_part, end)) = star else { return false };
                    star = Some((star_part, end + 1));
                    (part, at) = (star_part + 1, end + 1);
                }
            }
        }
        self.parts[part..].iter().all(|part| *part == Part::Any)
    }
}

impl Part {
    fn is(&self, unit: Unit) -> bool {
        match self {
            Part::Any => false,
            Part::One => true,
            Part::Exactly(wanted) => *wanted == unit,
            Part::Of { ranges, negated } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&unit)) != *negated
            }
        }
    }
}

fn units(text: &[u8], lower: bool) -> Vec<Unit> {
    let mut units = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        let chars = chunk.valid().chars();
        units.extend(
            chars.map(|char| Unit::from(if lower { char.to_lowercase().next().unwrap_or(char) } else { char })),
        );
        units.extend(chunk.invalid().iter().map(|byte| Unit::from(char::MAX) + 1 + Unit::from(*byte)));
    }
    units
}

/// Parses a list behind its `[`. Returns it with the number of units up to its `]`.
fn list(units: &[Unit]) -> Option<(Part, usize)> {
    let is =
        |at: usize, chars: &[char]| units.get(at).is_some_and(|unit| chars.iter().any(|char| *unit == *char as Unit));
    let negated = is(0, &['!', '^']);
    let first = usize::from(negated);
    let (mut at, mut ranges) = (first, Vec::new());
    // A `]` that comes first is one of the characters.
    while at == first || !is(at, &[']']) {
        at += usize::from(is(at, &['\\']));
        let from = *units.get(at)?;
        let to = if is(at + 1, &['-']) && !is(at + 2, &[']']) { at + 2 } else { at };
        ranges.push((from, *units.get(to)?));
        at = to + 1;
    }
    Some((Part::Of { ranges, negated }, at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_the_shell() {
        for (pattern, yes, no) in [
            ("*", &["", "a", ".a"][..], &[][..]),
            ("*.c", &["a.c", ".c", "a.b.c"], &["a.cc", "c"]),
            ("a*b*c", &["abc", "aXbYc", "abbcbc"], &["ab", "abcd"]),
            ("?", &["a", "ü"], &["", "ab"]),
            ("[a-cx]", &["b", "x"], &["d", "", "ab"]),
            ("[!a-c]", &["d", "ü"], &["a"]),
            ("[^a]", &["b"], &["a"]),
            ("[]-]", &["]", "-"], &["a"]),
            ("[ä-ü]", &["ö"], &["a"]),
            ("\\*", &["*"], &["a"]),
            ("[a", &["[a"], &["a"]),
            ("a\\", &["a\\"], &["a"]),
            ("", &[""], &["a"]),
        ] {
            let glob = Glob::new(pattern.as_bytes(), false);
            yes.iter().for_each(|name| assert!(glob.matches(name.as_bytes()), "{pattern} {name}"));
            no.iter().for_each(|name| assert!(!glob.matches(name.as_bytes()), "{pattern} {name}"));
        }
    }

    #[test]
    fn names_may_be_no_text_and_case_may_not_matter() {
        assert!(Glob::new(b"a?b", false).matches(b"a\xffb") && Glob::new(b"\xff*", false).matches(b"\xffx"));
        assert!(Glob::new("*.JPG ü".as_bytes(), true).matches("a.jpg Ü".as_bytes()));
        assert!(!Glob::new(b"A", false).matches(b"a"));
    }

    #[test]
    fn many_stars_do_not_take_long() {
        let (pattern, name) = ("*a".repeat(100) + "b", "a".repeat(255));
        assert!(!Glob::new(pattern.as_bytes(), false).matches(name.as_bytes()));
    }
}
