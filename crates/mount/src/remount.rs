//! `mount -o remount`: other options for a volume that stays mounted.
//!
//! The options of every mount change: the kernel keeps them, and the daemon follows it where they concern it. Those of
//! moafs stay as they are; mount(8) repeats the ones of fstab, and so they may be named again.

use std::io;
use std::path::Path;

use moafs_fuse::{MountFlags, MountOptions};

use crate::driver_options::DriverOption;
use crate::identity::IDENTITY_FLAGS;
use crate::option_list;
use crate::options::{OptionError, Settings};

/// The option that asks for it.
const REMOUNT: &str = "remount";

/// Words of the kernel's mount table, which mount(8) repeats; those that end in `=` with any value.
const OF_THE_TABLE: &[&str] =
    &["fd=", "rootmode=", "user_id=", "group_id=", "blksize=", "max_read=", "default_permissions", "allow_other"];

/// Flags of a mount, and the options that they stand for.
const KEPT: &[(MountFlags, &str)] = &[
    (MountFlags::RDONLY, "ro"),
    (MountFlags::NOSUID, "nosuid"),
    (MountFlags::NODEV, "nodev"),
    (MountFlags::NOEXEC, "noexec"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
    (MountFlags::LAZYTIME, "lazytime"),
];

/// Returns the options of the mount at `target` that a remount which does not name them is to keep. Those of access
/// times the kernel keeps by itself.
///
/// # Errors
/// The mount table cannot be read.
pub fn current(target: &Path) -> io::Result<Vec<&'static str>> {
    let flags = moafs_fuse::mount_flags(target)?.unwrap_or_default();
    Ok(KEPT.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, option)| *option).collect())
}

/// The options of a remount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remount {
    flags: MountFlags,
    /// Options that cannot change.
    fixed: Vec<String>,
}

/// Returns true if these `-o` lists ask for a remount.
pub fn is_asked_for<'a>(lists: impl IntoIterator<Item = &'a str>) -> bool {
    option_list::split(lists).any(|option| option == REMOUNT)
}

impl Remount {
    /// Parses `-o` lists, each comma-separated; later options win.
    ///
    /// # Errors
    /// As [`Settings::parse`].
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>, root: bool) -> Result<Remount, OptionError> {
        let mut remount = Remount { flags: MountFlags::empty(), fixed: Vec::new() };
        for option in option_list::split(lists).filter(|option| *option != REMOUNT && !is_of_the_table(option)) {
            if !remount.apply(option) {
                Settings::parse([option], root)?;
                remount.fixed.push(option.to_owned());
            }
        }
        Ok(remount)
    }

    /// Applies an option of every mount, or one that changes nothing. Returns false for others.
    fn apply(&mut self, option: &str) -> bool {
        if DriverOption::of(option) == Some(DriverOption::Accepted) {
            return true;
        }
        let before = MountOptions { flags: self.flags, ..MountOptions::default() };
        let mut after = before.clone();
        let is_flag = after.apply(option).is_ok() && MountOptions { flags: before.flags, ..after.clone() } == before;
        if is_flag {
            self.flags = after.flags;
        }
        is_flag
    }

    /// Returns the options that the mount gets, of a volume that was mounted with the options `given`, and that is open
    /// for reading only if `read_only`.
    ///
    /// # Errors
    /// [`OptionError::Impossible`].
    pub fn of_volume(mut self, given: &[String], read_only: bool) -> Result<Remount, OptionError> {
        if read_only && !self.flags.contains(MountFlags::RDONLY) {
            let reason = "the volume is open for reading only; unmount it and mount it again";
            return Err(OptionError::Impossible { option: "remount,rw".to_owned(), reason });
        }
        // The mount table may show a value in quotes that was given without.
        let is_given = |option: &&String| given.iter().any(|given| plain(given) == plain(option));
        match self.fixed.iter().find(|option| !is_given(option)) {
            Some(option) => {
                let reason = "a remount does not change it; unmount the volume and mount it again";
                Err(OptionError::Impossible { option: option.clone(), reason })
            }
            None => {
                let as_mounted = Settings::parse(given.iter().map(String::as_str), true)?;
                if !as_mounted.identity.is_stored() {
                    self.flags |= IDENTITY_FLAGS;
                }
                Ok(self)
            }
        }
    }

    /// Gives the mount at `target` these options.
    ///
    /// # Errors
    /// The kernel's: EPERM for users other than root; EBUSY for `ro` while files are open for writing; EINVAL if
    /// nothing is mounted at `target`.
    pub fn carry_out(&self, target: &Path) -> io::Result<()> {
        moafs_fuse::remount(target, self.flags)
    }
}

fn plain(option: &str) -> String {
    option.replace('"', "")
}

fn is_of_the_table(option: &str) -> bool {
    let is = |word: &&str| if word.ends_with('=') { option.starts_with(*word) } else { option == *word };
    OF_THE_TABLE.iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Remount {
        Remount::parse([list], true).unwrap()
    }

    #[test]
    fn the_list_of_mount8_is_understood() {
        assert!(is_asked_for(["rw", "noatime,remount"]) && !is_asked_for(["ro,errors=remount-ro"]));
        let list = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,blksize=4096,remount,ro";
        let remount = parse(list);
        assert_eq!(remount.flags, MountFlags::RDONLY | MountFlags::RELATIME);
        remount.of_volume(&[], true).unwrap();
        assert_eq!(parse("remount,ro,rw,nosuid,errors=remount-ro,nofail").flags, MountFlags::NOSUID);
        assert!(Remount::parse(["remount,noatme"], true).is_err());
    }

    #[test]
    fn a_context_with_categories_is_one_option_that_stays() {
        let given = ["context=\"a:b:c1,c2\"".to_owned()];
        parse("remount,ro,context=\"a:b:c1,c2\"").of_volume(&given, false).unwrap();
        assert!(parse("remount,context=\"a:b:c1,c3\"").of_volume(&given, false).is_err());
    }

    #[test]
    fn a_volume_open_for_reading_only_stays_read_only() {
        let refused = parse("remount,rw").of_volume(&[], true).unwrap_err().to_string();
        assert!(refused.contains("mount it again"), "{refused}");
        parse("remount,rw").of_volume(&[], false).unwrap();
    }

    #[test]
    fn a_mount_that_shows_other_owners_stays_without_set_ids_and_devices() {
        let flags = |given: &str| {
            let remount = parse("remount,suid,dev,uid=5").of_volume(&["uid=5".to_owned(), given.to_owned()], false);
            remount.unwrap().flags
        };
        assert_eq!(flags("rw"), IDENTITY_FLAGS);
        let stored = parse("remount,suid,dev").of_volume(&["nosuid".to_owned()], false).unwrap();
        assert_eq!(stored.flags, MountFlags::empty());
    }

    #[test]
    fn options_of_moafs_stay_as_they_were_given() {
        let given = ["rw".to_owned(), "cache=64M".to_owned(), "context=a".to_owned()];
        parse("remount,ro,cache=64M,context=a").of_volume(&given, false).unwrap();
        for other in ["cache=32M", "place=ffs", "context=b", "auto_unmount"] {
            let refused = parse(&format!("remount,{other}")).of_volume(&given, false).unwrap_err().to_string();
            assert!(refused.contains(other), "{refused}");
        }
    }
}
