//! The driver's side of the login phase and of discovery: which initiators may log in to which targets.

use std::{
    rc::{Rc, Weak},
    sync::Arc,
};

use engine::{
    Duration,
    cross::{OneshotReceiver, answered},
    random,
    share::charge,
    spend,
    sync::Permit,
    task::{self, Either},
    time,
};
use front::{Peer, Progress};
use iscsi::{Authentication, Chap, Isid, LoginRequest, LoginStatus, SendTargets, SessionType};
use unit::Commands;

use crate::{
    config::Redirect, connection::Connection, notices::IscsiNotice, sessions::SessionKey,
    target::Target,
};

/// The cost of checking whether an initiator may use a target, in bytes of memory that are moved in that time.
const CHECK_BYTES: usize = 256;

/// Why a login is refused, and where to go instead.
struct LoginRefusal {
    status: LoginStatus,
    target_address: Option<String>,
}

impl From<LoginStatus> for LoginRefusal {
    fn from(status: LoginStatus) -> LoginRefusal {
        LoginRefusal {
            status,
            target_address: None,
        }
    }
}

/// Handles the first request of a login: does the target exist at this portal, may this initiator use it, and what
/// must the initiator prove? Whoever has failed before is asked at once all the same, because the next proof may be the
/// right initiator's.
pub(crate) fn begin(connection: &Connection, request: &LoginRequest) {
    let name = &request.initiator_name;
    connection
        .service
        .sessions
        .admission
        .begin(connection.id, name);
    connection.set_initiator(name);
    answer(connection, check(connection, request));
}

fn answer(connection: &Connection, checked: Result<Option<Arc<Chap>>, LoginRefusal>) {
    let checked = checked.and_then(|chap| Ok(chap.map(authentication).transpose()?));
    let tag = connection.target().map_or(0, |target| target.portals.tag);
    let mut machine = connection.machine.borrow_mut();
    let _ = match checked {
        Ok(None) => machine.login_continue(tag),
        Ok(Some(authentication)) => machine.login_authenticate(tag, authentication),
        Err(refusal) => {
            drop(machine);
            return refuse(connection, refusal);
        }
    };
}

fn refuse(connection: &Connection, refusal: impl Into<LoginRefusal>) {
    let LoginRefusal {
        status,
        target_address,
    } = refusal.into();
    let mut machine = connection.machine.borrow_mut();
    let _ = machine.login_reject(status, target_address.as_deref());
}

/// Logs that the initiator was refused, by this driver or by the protocol machine.
pub(crate) fn refused(connection: &Connection, status: LoginStatus, target_address: Option<&str>) {
    // A failed authentication has already been logged with its cause.
    if status == LoginStatus::AUTHENTICATION_FAILURE {
        return;
    }
    let machine = connection.machine.borrow();
    let report = machine.login_report();
    let (peer, initiator) = (connection.peer, &report.request.initiator_name);
    let target = report.request.target_name.as_deref().unwrap_or("-");
    // The status does not say whether the name or the address was refused.
    let targets = connection.service.targets.borrow();
    let not_allowed = targets
        .at(target, connection.local)
        .filter(|_| status == LoginStatus::AUTHORIZATION_FAILURE)
        .and_then(|target| target.spec.refusal_of(initiator, peer.ip()));
    let complaint = report.complaint.or(not_allowed);
    let colon = complaint.map_or("", |_| ": ");
    let complaint = complaint.unwrap_or_default();
    let what = format!("{initiator} {target} {status}{colon}{complaint}");
    let Some(suppressed) = connection.may_repeat(IscsiNotice::Refused, &what) else {
        return;
    };
    if let Some(to) = target_address {
        tracing::info!(%peer, ?initiator, ?target, to, suppressed, "login redirected: {status}");
    } else {
        tracing::warn!(%peer, ?initiator, ?target, suppressed, "login refused: {status}{colon}{complaint}");
    }
}

/// Logs that the initiator left before completing its login, if it had begun one.
pub(crate) fn given_up(connection: &Connection) {
    let machine = connection.machine.borrow();
    let report = machine.login_report();
    let (true, Some(why)) = (report.has_begun, connection.lost_because()) else {
        return;
    };
    let Some(suppressed) = connection.may_say(IscsiNotice::Refused) else {
        return;
    };
    let (peer, initiator) = (connection.peer, &report.request.initiator_name);
    let target = report.request.target_name.as_deref().unwrap_or("-");
    let mend = match report.has_proven {
        true => "; if it rejected the target's CHAP response, check user and secret of `mutual`",
        false => "",
    };
    tracing::warn!(%peer, ?initiator, ?target, suppressed, "login abandoned: {why}{mend}");
}

/// The same CHAP settings with a fresh, unpredictable challenge.
fn authentication(chap: Arc<Chap>) -> Result<Authentication, LoginStatus> {
    let mut challenge = [0; Authentication::RANDOM_LEN];
    random::fill(&mut challenge).map_err(|error| {
        tracing::error!(%error, "cannot generate random bytes for a challenge");
        LoginStatus::TARGET_ERROR
    })?;
    Ok(Authentication::new(chap, challenge))
}

/// The initiator failed authentication. Returns how long it has to wait [for the answer](answer_failure).
pub(crate) fn failed(connection: &Connection, user: Option<&str>, why: &str) -> Duration {
    let (peer, sessions) = (connection.peer, &connection.service.sessions);
    let failed = sessions.failures.note(Peer::of(peer.ip()), time::now());
    // Of all that wait before login, it can be spared most.
    sessions.admission.progress(connection.id, Progress::Failed);
    if let Some(suppressed) = connection.may_say(IscsiNotice::Unproven) {
        let target = connection.target();
        tracing::warn!(
            %peer,
            suppressed,
            initiator = ?connection.initiator(),
            target = target.as_ref().map_or("-", |target| target.name()),
            user = ?user.unwrap_or("-"),
            count = failed.count,
            "authentication failed: {why}"
        );
    }
    failed.delay.min(connection.limits.login_timeout / 2)
}

/// Refuses an initiator that failed authentication, after a while: guessing is to be slow.
pub(crate) async fn answer_failure(connection: &Connection, delay: Duration) {
    if time::timeout(delay, connection.over()).await.is_none() {
        refuse(connection, LoginStatus::AUTHENTICATION_FAILURE);
    }
}

/// What the initiator must prove, if anything.
fn check(
    connection: &Connection,
    request: &LoginRequest,
) -> Result<Option<Arc<Chap>>, LoginRefusal> {
    if connection.is_finishing() {
        return Err(LoginStatus::SERVICE_UNAVAILABLE.into());
    }
    if request.session_type == SessionType::Discovery {
        // Discovery sessions are not registered, so none can be joined.
        return match request.tsih {
            0 => Ok(connection.service.discovery.borrow().clone()),
            _ => Err(LoginStatus::SESSION_DOES_NOT_EXIST.into()),
        };
    }
    let name = request
        .target_name
        .as_deref()
        .ok_or(LoginStatus::MISSING_PARAMETER)?;
    let targets = connection.service.targets.borrow().clone();
    let target = targets
        .at(name, connection.local)
        .ok_or(LoginStatus::NOT_FOUND)?;
    let peer = connection.peer.ip();
    if target
        .spec
        .refusal_of(&request.initiator_name, peer)
        .is_some()
    {
        return Err(LoginStatus::AUTHORIZATION_FAILURE.into());
    }
    if let Some(Redirect { to, permanently }) = target.spec.redirect {
        let status = match permanently {
            true => LoginStatus::MOVED_PERMANENTLY,
            false => LoginStatus::MOVED_TEMPORARILY,
        };
        return Err(LoginRefusal {
            status,
            target_address: Some(crate::portals::plain(to).to_string()),
        });
    }
    connection.set_target(target.clone());
    Ok(target.spec.chap.clone())
}

fn session_key(target: &Target, request: &LoginRequest) -> SessionKey {
    SessionKey {
        initiator_name: request.initiator_name.clone(),
        isid: request.isid,
        target_name: target.name().to_owned(),
        portal_group_tag: target.portals.tag,
    }
}

/// Begins the session, once any older session of the same initiator port has ended with all its I/O.
pub(crate) async fn enter(connection: &Rc<Connection>, request: LoginRequest) {
    let service = &connection.service;
    let Some(target) = connection.target() else {
        // A discovery session: any number of them may exist.
        return begin_session(connection, &request, 1, None);
    };
    let key = session_key(&target, &request);
    if request.tsih != 0 {
        // MaxConnections is 1: a second connection cannot join a session even if that session exists. Only now: who has
        // not proved itself must not learn whether it does.
        let refusal = match service.sessions.has(&key, request.tsih) {
            true => LoginStatus::TOO_MANY_CONNECTIONS,
            false => LoginStatus::SESSION_DOES_NOT_EXIST,
        };
        return refuse(connection, refusal);
    }
    let admission = &service.sessions.admission;
    admission.awaits_us(connection.id, true);
    let tsih = loop {
        match service.sessions.enter(&key, connection.id, &service.own) {
            Ok(tsih) => break tsih,
            // Time-limited, so that an older session whose volume hangs does not block this login forever.
            Err(ended) => match patience(connection, ended).await {
                Some(()) if connection.is_ended() => return,
                Some(()) => {}
                None => return refuse(connection, LoginStatus::SERVICE_UNAVAILABLE),
            },
        }
    };
    connection.set_key(key);
    if connection.is_ended() {
        return connection.release_key();
    }
    if !admission.enter(connection.id, &request.initiator_name, time::now()) {
        connection.release_key();
        return refuse(connection, LoginStatus::OUT_OF_RESOURCES);
    }
    if let Some(suppressed) = connection.may_say(IscsiNotice::LoggedIn) {
        tracing::info!(
            peer = %connection.peer,
            initiator = request.initiator_name,
            target = target.name(),
            suppressed,
            "logged in"
        );
    }
    begin_session(connection, &request, tsih, Some(&target));
}

/// Tells the initiator that its session has begun; `nexus` is `None` for a discovery session.
fn begin_session(
    connection: &Rc<Connection>,
    request: &LoginRequest,
    tsih: u16,
    target: Option<&Rc<Target>>,
) {
    let service = &connection.service;
    let nexus = target.map(|target| {
        let commands: Weak<dyn Commands> = Rc::downgrade(connection) as Weak<Connection>;
        let initiator = &request.initiator_name;
        let nexus = service.units.enter(initiator, &target.luns, commands);
        let port = initiator_port(initiator, request.isid);
        for (&lun, unit) in &*target.luns {
            for attention in unit.logical.borrow().establish(nexus.id, &port) {
                connection.unacknowledged.add(lun, attention);
            }
            charge(unit.logical.borrow().take_work());
        }
        nexus
    });
    connection.begin_session(nexus);
    let demanded = match target {
        Some(target) => target.spec.chap.is_some(),
        None => service.discovery.borrow().is_some(),
    };
    if demanded {
        let peer = Peer::of(connection.peer.ip());
        service.sessions.failures.forgive(peer);
    }
    connection.accept_login(tsih);
}

/// The initiator port name, as reservations use it (RFC 7143 §4.4.4).
pub(crate) fn initiator_port(initiator: &str, isid: Isid) -> String {
    let isid = isid.0.map(|byte| format!("{byte:02x}")).concat();
    format!("{initiator},i,0x{isid}")
}

/// Waits for an older session to end, for at most the login timeout and only while the new connection lasts. `None`
/// if the time ran out.
async fn patience(connection: &Connection, ended: OneshotReceiver<()>) -> Option<()> {
    let ended = answered(ended, "end an older session");
    let either = task::either(ended, connection.over());
    let waited = time::timeout(connection.limits.login_timeout, either).await;
    waited.map(drop)
}

/// The turn of a connection to be sent a list of targets. A session has it always.
pub(crate) struct ListTurn(Option<Permit>);

/// Waits for the turn of `connection`; `None` if it ends before.
pub(crate) async fn list_turn(connection: &Connection) -> Option<ListTurn> {
    if connection.nexus().is_some() {
        return Some(ListTurn(None));
    }
    let lists = &connection.service.lists;
    match task::either(connection.over(), lists.take(1)).await {
        Either::One(()) => None,
        Either::Other(turn) => Some(ListTurn(Some(turn))),
    }
}

/// Holds the `turn` until the list has been taken, which may last as long as a login.
pub(crate) async fn until_list_taken(connection: &Connection, turn: ListTurn) {
    let ListTurn(Some(_turn)) = turn else {
        return;
    };
    let is_taken = || !connection.is_sending.get() && !connection.machine.borrow().is_answering();
    let taken = connection
        .sent
        .wait_for(|| (connection.is_ended() || is_taken()).then_some(()));
    let patience = connection.limits.login_timeout;
    if time::timeout(patience, taken).await.is_none() {
        connection.end("it did not take the list of targets in time");
    }
}

/// Answers a discovery request.
pub(crate) async fn send_targets(connection: &Connection, which: &SendTargets) {
    let own = connection.target();
    let (initiator, peer) = (connection.initiator(), connection.peer.ip());
    let targets = connection.service.targets.borrow().clone();
    let list = targets.list(connection.local).await;
    let named = match which {
        SendTargets::All => None,
        SendTargets::Named(name) => Some(name.as_str()),
        SendTargets::Session => Some(own.as_ref().map_or("", |own| own.name())),
    };
    // The list is in the order of the names.
    let place = |name| {
        list.entries
            .partition_point(|(target, _)| target.name() < name)
    };
    let entries = match named {
        None => &list.entries[..],
        Some(name) => &list.entries[place(name)..],
    };
    let mut answer = Vec::new();
    let mut hidden = None;
    for (target, text) in entries {
        if named.is_some_and(|name| name != target.name()) {
            break;
        }
        spend(CHECK_BYTES + text.len()).await;
        // Only targets that the initiator may use are listed (RFC 7143 Appendix C).
        match target.spec.refusal_of(&initiator, peer) {
            None => answer.extend_from_slice(&list.text[text.clone()]),
            Some(why) => hidden = hidden.or(Some((target, why))),
        }
    }
    if let Some((target, why)) = hidden.filter(|_| answer.is_empty()) {
        tell_hidden(connection, target, why);
    }
    charge(2 * answer.len());
    let _ = connection.machine.borrow_mut().send_targets(&answer);
}

/// Logs that a discovery lists nothing because the initiator may use none of the targets at this portal, such as
/// `target`.
fn tell_hidden(connection: &Connection, target: &Target, why: &str) {
    if let Some(suppressed) = connection.may_say(IscsiNotice::Refused) {
        let (initiator, peer) = (connection.initiator(), connection.peer);
        let target = target.name();
        tracing::warn!(%peer, ?initiator, ?target, suppressed,
            "discovery returned no targets: {why}");
    }
}
