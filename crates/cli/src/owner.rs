//! The owner of what a command makes.

/// Returns user and group of the caller: what an ordinary user makes on a volume is the user's.
pub(crate) fn of_caller() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Parses `UID:GID`.
pub(crate) fn parse(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.ok_or_else(|| "give the numbers of a user and a group, such as 1000:1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_two_numbers() {
        assert_eq!(parse("1000:100"), Ok((1000, 100)));
        for text in ["", "1000", "1000:", ":100", "root:root", "-1:0", "1:2:3", "4294967296:0"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
