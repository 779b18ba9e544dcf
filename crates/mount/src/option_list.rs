//! Lists of mount options, as `-o` takes them.

/// Splits lists into options, at their commas. Those within double quotes belong to a value, as mount(8) has it for a
/// security context with several categories: `context="system_u:object_r:tmp_t:s0:c1,c2"`.
pub fn split<'a>(lists: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let split_one = |list: &'a str| {
        let mut is_quoted = false;
        let is_end = move |letter: char| {
            is_quoted ^= letter == '"';
            letter == ',' && !is_quoted
        };
        list.split(is_end).filter(|option| !option.is_empty())
    };
    lists.into_iter().flat_map(split_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_quotes_end_no_option() {
        let lists = ["ro,context=\"a:b:c1,c2\",,noatime", "", "x=\"1,2"];
        let options: Vec<&str> = split(lists).collect();
        assert_eq!(options, ["ro", "context=\"a:b:c1,c2\"", "noatime", "x=\"1,2"]);
    }
}
