//! [`ModeChange`]: the modes that chmod(1) takes, octal or symbolic, in the grammar of POSIX.

/// Permissions of user, group and others.
const ALL: u32 = 0o777;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
/// Digits of an octal mode that says all about a directory: fewer leave set-id bits which it does not name.
const FULL_DIGITS: usize = 5;

/// A change of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModeChange {
    /// All bits are given.
    Octal { perm: u32, is_full: bool },
    /// Steps, done one after another.
    Symbolic(Vec<Step>),
}

/// A step such as `u+rw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    who: Who,
    does: Does,
    what: What,
}

/// The classes of users that a step is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Who {
    user: bool,
    group: bool,
    others: bool,
    /// True if no class was named: all of them, but for what the umask takes.
    is_default: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Add,
    Remove,
    Set,
}

/// The permissions of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Bits {
        /// Of `rwx`, as for one class.
        rwx: u32,
        /// `X`: execute, for directories and files that some class may execute.
        search: bool,
        set_id: bool,
        sticky: bool,
    },
    /// Those of a class, which is at this shift.
    CopyOf { shift: u32 },
}

impl ModeChange {
    /// Parses `[0-7]+`, or clauses separated by commas.
    pub(crate) fn parse(text: &str) -> Result<ModeChange, String> {
        let wrong = || "give a mode such as 644, u+x or go-w,a=rX".to_owned();
        if text.starts_with(|char: char| char.is_ascii_digit()) {
            let perm = u32::from_str_radix(text, 8).ok().filter(|perm| *perm <= 0o7777).ok_or_else(wrong)?;
            return Ok(ModeChange::Octal { perm, is_full: text.len() >= FULL_DIGITS });
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            add_steps(clause, &mut steps).ok_or_else(wrong)?;
        }
        Ok(ModeChange::Symbolic(steps))
    }

    /// Returns the mode that a file with the mode `perm` gets.
    pub(crate) fn apply(&self, perm: u32, is_directory: bool, umask: u32) -> u32 {
        match self {
            ModeChange::Octal { perm: new, is_full: false } if is_directory => new | (perm & (SET_UID | SET_GID)),
            ModeChange::Octal { perm: new, .. } => *new,
            ModeChange::Symbolic(steps) => {
                let may_search = is_directory || perm & 0o111 != 0;
                steps.iter().fold(perm, |now, step| step.apply(now, is_directory, may_search, umask))
            }
        }
    }
}

/// Parses a clause: classes, then one or more operators, each with permissions.
fn add_steps(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let first = clause.find(['+', '-', '='])?;
    let who = Who::parse(&clause[..first])?;
    let mut rest = &clause[first..];
    while let Some(operator) = rest.chars().next() {
        let does = match operator {
            '+' => Does::Add,
            '-' => Does::Remove,
            _ => Does::Set,
        };
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |at| at + 1);
        steps.push(Step { who, does, what: What::parse(&rest[1..end])? });
        rest = &rest[end..];
    }
    Some(())
}

impl Who {
    fn parse(text: &str) -> Option<Who> {
        let mut who = Who { is_default: text.is_empty(), ..Who::default() };
        for char in text.chars() {
            match char {
                'u' => who.user = true,
                'g' => who.group = true,
                'o' => who.others = true,
                'a' => (who.user, who.group, who.others) = (true, true, true),
                _ => return None,
            }
        }
        if who.is_default {
            (who.user, who.group, who.others) = (true, true, true);
        }
        Some(who)
    }

    /// Returns permissions of one class as those of all classes that are meant.
    fn spread(self, rwx: u32) -> u32 {
        let of = |is_meant: bool, shift: u32| if is_meant { rwx << shift } else { 0 };
        of(self.user, 6) | of(self.group, 3) | of(self.others, 0)
    }

    fn set_ids(self) -> u32 {
        (if self.user { SET_UID } else { 0 }) | if self.group { SET_GID } else { 0 }
    }

    fn sticky(self) -> u32 {
        if self.others { STICKY } else { 0 }
    }
}

impl What {
    fn parse(text: &str) -> Option<What> {
        match text {
            "u" => return Some(What::CopyOf { shift: 6 }),
            "g" => return Some(What::CopyOf { shift: 3 }),
            "o" => return Some(What::CopyOf { shift: 0 }),
            _ => {}
        }
        let (mut rwx, mut search, mut set_id, mut sticky) = (0, false, false, false);
        for char in text.chars() {
            match char {
                'r' => rwx |= 4,
                'w' => rwx |= 2,
                'x' => rwx |= 1,
                'X' => search = true,
                's' => set_id = true,
                't' => sticky = true,
                _ => return None,
            }
        }
        Some(What::Bits { rwx, search, set_id, sticky })
    }

    /// Returns the bits that are meant of a file with the mode `perm`.
    fn bits(self, who: Who, perm: u32, may_search: bool) -> u32 {
        match self {
            What::CopyOf { shift } => who.spread(perm >> shift & 0o7),
            What::Bits { rwx, search, set_id, sticky } => {
                let rwx = if search && may_search { rwx | 1 } else { rwx };
                let set_ids = if set_id { who.set_ids() } else { 0 };
                who.spread(rwx) | set_ids | if sticky { who.sticky() } else { 0 }
            }
        }
    }
}

impl Step {
    fn apply(self, perm: u32, is_directory: bool, may_search: bool, umask: u32) -> u32 {
        let given = self.what.bits(self.who, perm, may_search);
        let bits = if self.who.is_default { given & !(umask & ALL) } else { given };
        match self.does {
            Does::Add => perm | bits,
            Does::Remove => perm & !bits,
            Does::Set => {
                // Directories keep set-id bits that no step names.
                let set_ids = if is_directory { 0 } else { self.who.set_ids() };
                perm & !(self.who.spread(0o7) | set_ids | self.who.sticky()) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: &str, perm: u32) -> u32 {
        ModeChange::parse(mode).unwrap().apply(perm, false, 0o022)
    }

    fn directory(mode: &str, perm: u32) -> u32 {
        ModeChange::parse(mode).unwrap().apply(perm, true, 0o022)
    }

    #[test]
    fn octal_modes_say_all_bits() {
        assert_eq!(file("644", 0o4755), 0o644);
        assert_eq!(file("0", 0o755), 0);
        assert_eq!(file("7777", 0), 0o7777);
    }

    #[test]
    fn symbolic_modes_change_the_classes_that_they_name() {
        for (mode, before, after) in [
            ("u+x", 0o644, 0o744),
            ("go-w", 0o666, 0o644),
            ("a=r", 0o777, 0o444),
            ("u=rwx,g=rx,o=", 0o000, 0o750),
            ("u+r-w+x", 0o200, 0o500),
            ("ug+s", 0o755, 0o6755),
            ("g-s", 0o6755, 0o4755),
            ("+t", 0o755, 0o1755),
            ("u+t", 0o755, 0o755),
            ("g=u", 0o640, 0o660),
            ("o+g", 0o750, 0o755),
            ("u=o,o=u", 0o704, 0o404),
            ("u=rx", 0o4755, 0o555),
        ] {
            assert_eq!(file(mode, before), after, "{mode} of {before:o}");
        }
    }

    #[test]
    fn modes_without_a_class_leave_what_the_umask_takes() {
        assert_eq!(file("+w", 0o444), 0o644);
        assert_eq!(file("-w", 0o666), 0o466);
        assert_eq!(file("=rw", 0o777), 0o644);
        assert_eq!(file("a+w", 0o444), 0o666);
    }

    #[test]
    fn a_large_x_is_for_directories_and_what_can_be_executed() {
        assert_eq!(file("a+X", 0o644), 0o644);
        assert_eq!(file("a+X", 0o744), 0o755);
        assert_eq!(directory("a+X", 0o644), 0o755);
        // The mode before the change counts.
        assert_eq!(file("a-x,a+X", 0o744), 0o755);
    }

    #[test]
    fn directories_keep_set_id_bits_that_are_not_named() {
        assert_eq!(directory("755", 0o2700), 0o2755);
        assert_eq!(directory("00755", 0o2700), 0o755);
        assert_eq!(directory("g=rx", 0o2777), 0o2757);
        assert_eq!(directory("g-s", 0o2755), 0o755);
        assert_eq!(directory("=rx", 0o3777), 0o2555);
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "8", "10000", "u", "rw", "u+z", "+ug", "u+r,", "k+r", "7x", "-1"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }
}
