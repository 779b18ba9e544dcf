//! The owner of what a command makes, and the owners that commands are given.

/// Users of the host, with number and group.
const USERS: &str = "/etc/passwd";
/// Groups of the host, with number.
const GROUPS: &str = "/etc/group";

/// Returns user and group of the caller: what an ordinary user makes on a volume is the user's.
pub(crate) fn of_caller() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Returns the permissions that the caller's new files do not get.
pub(crate) fn umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

/// Parses `UID:GID`.
pub(crate) fn parse(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.ok_or_else(|| "give the numbers of a user and a group, such as 1000:1000".to_owned())
}

/// The owner that chown gives to files; a part that is left out stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewOwner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl NewOwner {
    /// Parses `USER`, `USER:GROUP`, `:GROUP` or `USER:` (that user's group), by numbers, or names of the host.
    pub(crate) fn parse(text: &str) -> Result<NewOwner, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let uid = if user.is_empty() { None } else { Some(id_of("user", USERS, user)?) };
        let gid = match group {
            None => None,
            Some("") if uid.is_some() => Some(group_of(user)?),
            Some(group) => Some(id_of("group", GROUPS, group)?),
        };
        match (uid, gid) {
            (None, None) => Err("give a user, a group (:GROUP), or both (USER:GROUP)".to_owned()),
            _ => Ok(NewOwner { uid, gid }),
        }
    }
}

/// Returns the number of a user or group. A name comes before a number, as POSIX says.
fn id_of(kind: &str, table: &str, name: &str) -> Result<u32, String> {
    let id = line_of(table, name)
        .and_then(|fields| fields.get(2)?.parse().ok())
        .or_else(|| name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok())?);
    // The highest number is "none" in system calls.
    id.filter(|id| *id != u32::MAX).ok_or_else(|| format!("no {kind} `{name}` in {table} of this host; give a number"))
}

/// Returns the number of the group that a user logs in with.
fn group_of(user: &str) -> Result<u32, String> {
    let gid = line_of(USERS, user).and_then(|fields| fields.get(3)?.parse().ok());
    gid.ok_or_else(|| format!("no user `{user}` in {USERS} of this host; name the group: USER:GROUP"))
}

/// Returns the fields of the line of a name in a table of users or groups.
fn line_of(table: &str, name: &str) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(&std::fs::read(table).ok()?).into_owned();
    let mut lines = text.lines().map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
    lines.find(|fields| fields[0] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_owner_has_numbers_or_names() {
        let owner = |text: &str| NewOwner::parse(text).map(|owner| (owner.uid, owner.gid));
        assert_eq!(owner("1000"), Ok((Some(1000), None)));
        assert_eq!(owner("1000:100"), Ok((Some(1000), Some(100))));
        assert_eq!(owner(":100"), Ok((None, Some(100))));
        assert_eq!(owner("root:root"), Ok((Some(0), Some(0))));
        assert_eq!(owner("root:"), Ok((Some(0), Some(0))));
        for text in ["", ":", "no-such-user", "0:no-such-group", "1000000000:", "-1", "4294967295", "1:2:3"] {
            assert!(owner(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_owner_is_two_numbers() {
        assert_eq!(parse("1000:100"), Ok((1000, 100)));
        for text in ["", "1000", "1000:", ":100", "root:root", "-1:0", "1:2:3", "4294967296:0"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
