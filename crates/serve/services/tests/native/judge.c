// Decides about system calls by the last letter of their path.
#include "orbit_service.h"
void orbit_handler(const struct orbit_context *context, const struct orbit_event *event)
{
	struct orbit_question asked;
	char last = 0;
	(void)context;
	if (event->kind != ORBIT_QUESTION || orbit_question(event->value, &asked))
		return;
	for (int i = 0; i < 128 && asked.path[i]; i++)
		last = asked.path[i];
	switch (last) {
	case 'd': // denied
		orbit_answer(event->value, ORBIT_RESULT, -ORBIT_EACCES);
		// A second answer is nobody's.
		orbit_answer(event->value, ORBIT_PASS, 0);
		return;
	case '0': // answered in the call's place
		orbit_answer(event->value, ORBIT_RESULT, 0);
		return;
	case 's': // silent
		return;
	case 'f': // no answer that means something, and one to a question that there is not
		orbit_answer(event->value + 4, ORBIT_RESULT, -ORBIT_EACCES);
		orbit_answer(event->value, 7, -ORBIT_EACCES);
		return;
	case 'r': // no error that there is
		orbit_answer(event->value, ORBIT_RESULT, -100000);
		return;
	case 'l': // loops
		for (volatile int i = 0;; i++)
			;
	default:
		orbit_answer(event->value, ORBIT_PASS, 0);
	}
}
