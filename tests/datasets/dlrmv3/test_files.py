"""Files in the benchmark's layout give the generator's users; damaged ones are refused with their place."""

import csv
import io

import pytest

from datasets.dlrmv3.files import Folder, from_line
from datasets.dlrmv3.generator import users
from datasets.dlrmv3.users import to_line
from datasets.errors import DataError
from tests.datasets.dlrmv3.small import SMALL, present_in, write_folder

USERS = {user.number: user for user in users(SMALL, range(240))}


def present(time):
    """Users of a period's requests."""
    return present_in(SMALL, USERS, time)


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path, SMALL, USERS)
    return tmp_path


def test_files_give_the_generator_s_users(folder):
    data = Folder(folder, SMALL)
    for number in (0, 79, 80, 161, 239):
        assert to_line(data.user(number)) == to_line(USERS[number])
    for time in (0, 9):
        assert data.requests(time).tolist() == present(time)


@pytest.mark.parametrize("number", [-1, 240])
def test_an_unknown_user_or_period_is_refused(folder, number):
    with pytest.raises(DataError, match=f"user: {number} is no user"):
        Folder(folder, SMALL).user(number)
    with pytest.raises(DataError, match="time: 10 is no period"):
        Folder(folder, SMALL).requests(10)


FIRST = to_line(USERS[0])
FIELDS = next(csv.reader([FIRST]))


def changed(place, text):
    """The first line with another field."""
    line = io.StringIO()
    csv.writer(line).writerow([*FIELDS[:place], text, *FIELDS[place + 1 :]])
    return line.getvalue()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3\r\n", "3 is not the number of fields, 48 for 10 periods; give the settings of this data"),
        ("\r\n", "is not the number of fields|is no line of a CSV file"),
        ('"1,2\r\n', "is no line of a CSV file"),
        (changed(2, "1,x,3"), r"field 2 \(events\): 1,x,3 is no list of whole numbers"),
        (changed(0, "96000"), r"field 0 \(candidates\): 96000 is no item of 0 to 95999"),
        (changed(0, "1"), r"field 1 \(candidate_ratings\): 8 ratings for 1 items"),
        (changed(3, "nan"), r"field 3 \(event_ratings\): nan is no rating of 1.0 to 5.0"),
        (changed(3, "0.5"), r"field 3 \(event_ratings\): 0.5 is no rating"),
        (changed(3, ""), r"field 3 \(event_ratings\):  is no list of numbers"),
    ],
    ids=["fields", "empty", "quote", "text", "large", "count", "nan", "low", "missing"],
)
def test_a_bad_line_is_named(line, message):
    with pytest.raises(DataError, match=message):
        from_line(line, 0, SMALL, "0.csv")
    with pytest.raises(DataError, match=r"^0.csv, user 0"):
        from_line(line, 0, SMALL, "0.csv")


def test_the_line_with_all_its_fields_is_read():
    assert len(FIELDS) == 48
    assert to_line(from_line(FIRST, 0, SMALL, "0.csv")) == FIRST


def test_a_cut_or_shifted_file_is_refused(folder):
    data, path = Folder(folder, SMALL), folder / "0.csv"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match="the file is cut"):
        data.user(79)
    path.write_bytes(b"1" + whole)
    with pytest.raises(DataError, match="is no place where a line begins"):
        data.user(5)


def test_a_missing_file_and_other_settings_are_refused(folder, tmp_path):
    more = SMALL.__class__(**{**vars(SMALL), "num_users": 243})
    with pytest.raises(DataError, match="80 places for 81 lines; give the settings of this data"):
        Folder(folder, more).user(0)
    (folder / "requests_per_ts_offset.csv").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        Folder(folder, SMALL)
