//! Choices with names: one declaration gives an enum, the names and help texts of its values, and what each value does.

/// Declares an enum whose values have names that options, tables and messages use.
///
/// One line for each value: the variant, its name, its help text (which is its documentation, too), and, where values
/// have behaviour, the implementation. The functions declared below the enum are calls of the implementation's method
/// of the same name, so adding a value adds a line here and a file with its implementation.
///
/// ```
/// moafs_vfs::named_enum! {
///     /// The search for free blocks: the values of `-o search=`.
///     #[derive(Default)]
///     pub enum Search ("search") {
///         First = "first", "The first run that is long enough" => First;
///         #[default]
///         Longest = "longest", "The longest run" => Longest;
///     }
///
///     /// Chooses one of the runs, given by their lengths.
///     pub fn choose(self, runs: &[u32], want: u32) -> Option<usize>;
/// }
///
/// trait Choose {
///     fn choose(&self, runs: &[u32], want: u32) -> Option<usize>;
/// }
/// struct First;
/// impl Choose for First {
///     fn choose(&self, runs: &[u32], want: u32) -> Option<usize> {
///         runs.iter().position(|len| *len >= want)
///     }
/// }
/// struct Longest;
/// impl Choose for Longest {
///     fn choose(&self, runs: &[u32], _want: u32) -> Option<usize> {
///         (0..runs.len()).max_by_key(|at| runs[*at])
///     }
/// }
///
/// let search: Search = "first".parse().unwrap();
/// assert_eq!(search.choose(&[1, 4, 9], 3), Some(1));
/// assert_eq!(Search::default().choose(&[1, 4, 9], 3), Some(2));
/// assert_eq!(Search::VALUES[1], ("longest", "The longest run"));
/// assert_eq!("best".parse::<Search>().unwrap_err(), "there is no search \"best\"; there are first, longest");
/// ```
///
/// `ALL` has all values and `VALUES` their names and help texts, in the order of the declaration; `name`, `help`,
/// `Display` and `FromStr` (with a message that lists the names) follow from them. `Debug`, `Clone`, `Copy`,
/// `PartialEq` and `Eq` are derived; further attributes are taken over.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $Enum:ident ($what:literal) {
            $($(#[$of_value:meta])* $Value:ident = $name:literal, $help:literal $(=> $does:expr)?;)+
        }
        $($functions:tt)*
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $Enum {
            $(#[doc = concat!($help, ".")] $(#[$of_value])* $Value,)+
        }

        impl $Enum {
            /// All values, in the order of their declaration.
            $visibility const ALL: [$Enum; [$($name),+].len()] = [$($Enum::$Value),+];

            /// The names of all values and what they do, for help texts.
            $visibility const VALUES: [(&'static str, &'static str); $Enum::ALL.len()] = [$(($name, $help)),+];

            /// Returns the name by which options and tables know it.
            $visibility const fn name(self) -> &'static str {
                match self {
                    $($Enum::$Value => $name,)+
                }
            }

            /// Returns what it does, in a few words.
            $visibility const fn help(self) -> &'static str {
                match self {
                    $($Enum::$Value => $help,)+
                }
            }
        }

        impl ::std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl ::std::str::FromStr for $Enum {
            type Err = ::std::string::String;

            fn from_str(name: &str) -> ::std::result::Result<$Enum, Self::Err> {
                let found = $Enum::ALL.into_iter().find(|value| value.name() == name);
                let known = || $Enum::ALL.map($Enum::name).join(", ");
                found.ok_or_else(|| ::std::format!("there is no {} \"{name}\"; there are {}", $what, known()))
            }
        }

        $crate::named_enum!(@functions $Enum [$($($Enum::$Value => $does,)?)+] $($functions)*);
    };
    (@functions $Enum:ident $values:tt) => {};
    (
        @functions $Enum:ident $values:tt
        $(#[$attribute:meta])*
        $visibility:vis fn $function:ident $(<$($Type:ident),+>)? ($this:ident $(, $argument:ident: $Argument:ty)* $(,)?)
        $(-> $Result:ty)?;
        $($more:tt)*
    ) => {
        impl $Enum {
            $(#[$attribute])*
            $visibility fn $function $(<$($Type),+>)? ($this $(, $argument: $Argument)*) $(-> $Result)? {
                $crate::named_enum!(@call $values $this $function ($($argument),*))
            }
        }
        $crate::named_enum!(@functions $Enum $values $($more)*);
    };
    (@call [$($value:path => $does:expr,)+] $this:ident $function:ident $arguments:tt) => {
        match $this {
            $($value => $does.$function $arguments,)+
        }
    };
}

#[cfg(test)]
mod tests {
    named_enum! {
        /// Ways to greet.
        #[derive(Hash, Default)]
        enum Greeting ("greeting") {
            Short = "short", "One word" => Words(1);
            #[default]
            Long = "long-winded", "Many words" => Words(9);
        }

        /// Returns the number of words for so many guests, each counted by `more`.
        fn words<T>(self, guests: u32, more: T) -> (u32, T);
    }

    struct Words(u32);

    impl Words {
        fn words<T>(&self, guests: u32, more: T) -> (u32, T) {
            (self.0 * guests, more)
        }
    }

    #[test]
    fn names_and_values_are_one_to_one() {
        for greeting in Greeting::ALL {
            assert_eq!(greeting.to_string().parse(), Ok(greeting));
        }
        assert_eq!(Greeting::VALUES.map(|(name, _)| name), ["short", "long-winded"]);
        assert_eq!(Greeting::default().help(), "Many words");
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let problem = "rude".parse::<Greeting>().unwrap_err();
        assert_eq!(problem, "there is no greeting \"rude\"; there are short, long-winded");
    }

    #[test]
    fn functions_call_the_implementation_of_the_value() {
        assert_eq!((Greeting::Short.words(3, 'a'), Greeting::Long.words(3, "b")), ((3, 'a'), (27, "b")));
    }
}
