//! Closed sets of words: written once, so that none can be forgotten in a list of all.

/// An enum whose variants are words, with `ALL` of them in this order and the `word` of each.
///
/// ```
/// pve_imds_model::words! {
///     /// Where to.
///     #[derive(Debug, Clone, Copy, PartialEq)]
///     enum Way {
///         /// There.
///         Out => "out",
///         /// Back.
///         In => "in",
///     }
/// }
/// assert_eq!(Way::ALL, [Way::Out, Way::In]);
/// assert_eq!(Way::In.word(), "in");
/// ```
#[macro_export]
macro_rules! words {
    (
        $(#[$about:meta])*
        $visible:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident => $word:literal,)* }
    ) => {
        $(#[$about])*
        $visible enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All there are.
            $visible const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word for it in README, logs, metrics and tests.
            #[must_use]
            $visible const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}
