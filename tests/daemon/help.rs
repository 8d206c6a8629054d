//! The help of the command: what a new user asks first.

use harness::sanstone::call;

#[test]
fn help_is_a_command_like_the_others() {
    for (arguments, words) in [
        (
            &["help"][..],
            &[
                "serve", "attach", "discover", "check", "apply", "show", "top", "volume", "demo",
                "lab",
            ][..],
        ),
        (
            &["help", "serve"],
            &["SIGTERM", "SIGHUP", "SIGUSR1", "--config <FILE>"],
        ),
        (
            &["serve", "--help"],
            &["SIGTERM", "SIGHUP", "SIGUSR1", "--config <FILE>"],
        ),
        (&["help", "show"], &["`attach`", "--state <DIR>"]),
        (&["top", "--help"], &["`attach`", "--state <DIR>"]),
        (
            &["demo", "--help"],
            &[
                "Columns of the table",
                "weighted",
                "speed-up",
                "of the link",
                "less is better",
            ],
        ),
    ] {
        let ran = call(arguments);
        assert_eq!(ran.code(), Some(0), "{ran}");
        for word in words {
            assert!(ran.stdout.contains(word), "no {word:?}\n{ran}");
        }
    }
    assert_eq!(call(&[]).code(), Some(2), "nothing to do");
}
