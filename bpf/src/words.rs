//! Closed lists in which each variant has one word: what a log says, a metric's label, a file's name. Above this room
//! `transport` has such lists too; the model, which knows nothing of either, has a macro of its own.

/// Makes the enum, its list `ALL` and its `word`, which is also how it is displayed.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    (
        $(#[$about:meta])*
        $visible:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident => $word:literal,)* }
    ) => {
        $(#[$about])*
        $visible enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every one there is, in the order of their declaration.
            $visible const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word for it in README, logs, metrics and tests.
            #[must_use]
            $visible const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}
