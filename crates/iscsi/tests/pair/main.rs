//! Both roles against each other in virtual time (`pair`), and each against a peer that breaks the rules (`hostile`,
//! `hostile_target`); `authentication` does both for CHAP.

mod authentication;
mod hostile;
mod hostile_target;
mod io;
mod pair;
mod session;
mod stage_times;
mod text;
