"""Clients of servers of mail and files.

    mail_check smtp PORT        sends 60 mails over three connections
    mail_check ftp PORT FOLDER  logs in as anonymous, and gets all files of the folder six times
"""

import ftplib
import os
import smtplib
import sys

from text_check import Count


def smtp(port):
    count = Count()
    for turn in range(3):
        with smtplib.SMTP("127.0.0.1", port, "client.test", timeout=30) as connection:
            for number in range(20):
                text = f"Subject: mail {turn}-{number}\r\n\r\n" + f"line of {turn}-{number}\r\n" * (number * 40 + 1)
                count.expect(connection.sendmail("a@client.test", ["root@server.test"], text), {})
    return count


def ftp(port, folder):
    count = Count()
    files = {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}
    for _ in range(6):
        with ftplib.FTP() as connection:
            connection.connect("127.0.0.1", port, timeout=30)
            connection.login()
            count.expect(sorted(connection.nlst()), sorted(files))
            for name, body in files.items():
                parts = []
                connection.retrbinary(f"RETR {name}", parts.append)
                count.expect(b"".join(parts) == body, True)
    return count


def main():
    count = smtp(int(sys.argv[2])) if sys.argv[1] == "smtp" else ftp(int(sys.argv[2]), sys.argv[3])
    print(f"right {count.right}, wrong {count.wrong}")
    sys.exit(count.wrong > 0)


if __name__ == "__main__":
    main()
