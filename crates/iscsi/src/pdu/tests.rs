//! Field positions against the figures of RFC 7143 §11, and additional header segments.

use super::*;

#[test]
fn fields_lie_where_the_figures_have_them() {
    let command = ScsiCommand {
        opcode: opcode::SCSI_COMMAND,
        data_segment_length: u24(0x01_0203),
        lun: 0x0102_0304_0506_0708.into(),
        initiator_task_tag: 0x1112_1314.into(),
        expected_data_transfer_length: 0x2122_2324.into(),
        cmd_sn: 0x3132_3334.into(),
        exp_stat_sn: 0x4142_4344.into(),
        cdb: [0xcc; 16],
        ..Default::default()
    }
    .to_bytes();
    assert_eq!(command[5..8], [1, 2, 3]);
    assert_eq!(command[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(command[16], 0x11);
    assert_eq!(
        (command[20], command[24], command[28], command[32]),
        (0x21, 0x31, 0x41, 0xcc)
    );
    assert_eq!(Bhs::of(&command).data_segment_length(), 0x01_0203);

    let login = LoginResponse {
        status: 0x0203.into(),
        tsih: 7.into(),
        ..Default::default()
    };
    let login = login.to_bytes();
    assert_eq!((&login[14..16], &login[36..38]), (&[0, 7][..], &[2, 3][..]));

    let data_out = DataOut {
        data_sn: 1.into(),
        buffer_offset: 2.into(),
        ..Default::default()
    };
    let data_out = data_out.to_bytes();
    assert_eq!((data_out[39], data_out[43]), (1, 2));

    let data_in = DataIn {
        residual_count: 3.into(),
        buffer_offset: 2.into(),
        ..Default::default()
    };
    let data_in = data_in.to_bytes();
    assert_eq!((data_in[43], data_in[47]), (2, 3));

    let task = TaskManagementRequest {
        ref_cmd_sn: 9.into(),
        ..Default::default()
    }
    .to_bytes();
    assert_eq!(task[35], 9);

    let message = AsyncMessage {
        event: 1,
        parameter3: 5.into(),
        ..Default::default()
    }
    .to_bytes();
    assert_eq!((message[36], message[43]), (1, 5));

    let logout = LogoutResponse {
        time2wait: 2.into(),
        time2retain: 3.into(),
        ..Default::default()
    };
    assert_eq!(logout.to_bytes()[40..44], [0, 2, 0, 3]);
}

#[test]
fn additional_headers_are_taken_apart() {
    let mut ahs = vec![0, 5, 2, 0, 0, 0, 2, 0];
    let read = AdditionalHeaders::parse(&ahs).unwrap();
    assert_eq!((read.read_length, read.extended_cdb), (Some(512), &[][..]));
    // An extended CDB of 18 bytes first: two bytes, padded.
    ahs.splice(0..0, [0, 3, 1, 0, 0xaa, 0xbb, 0, 0]);
    let both = AdditionalHeaders::parse(&ahs).unwrap();
    assert_eq!(
        (both.read_length, both.extended_cdb),
        (Some(512), &[0xaa, 0xbb][..])
    );
}

#[test]
fn malformed_additional_headers_are_refused() {
    for ahs in [
        &[0, 9, 1, 0][..],
        &[0xff, 0xff, 1, 0],
        &[0, 0, 1, 0],
        &[0, 1, 7, 0],
        &[0, 2, 2, 0, 1, 0, 0, 0],
    ] {
        assert!(AdditionalHeaders::parse(ahs).is_err(), "{ahs:?}");
    }
}
